"""System call numbers of the two machines we run on, from the kernel's uapi headers.

`ALLOWED` never takes an argument check; the others are decided by `_seccomp`. Not among them is
`timer_create`: a timer can send SIGKILL, which then would not have come from outside.
"""

ALLOWED = frozenset(
    [
        "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev",
        "preadv2", "pwritev2", "open", "openat", "creat", "close", "close_range", "stat",
        "fstat", "lstat", "newfstatat", "statx", "lseek", "access", "faccessat", "faccessat2",
        "readlink", "readlinkat", "getdents", "getdents64", "getcwd", "chdir", "fchdir",
        "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2",
        "link", "linkat", "symlink", "symlinkat", "truncate", "ftruncate", "fallocate", "chmod",
        "fchmod", "fchmodat", "umask", "fsync", "fdatasync", "flock", "dup", "dup2", "dup3",
        "pipe", "pipe2", "sendfile", "copy_file_range", "utime", "utimes", "utimensat",
        "futimesat", "statfs", "fstatfs", "fadvise64", "mmap", "munmap", "mprotect", "mremap",
        "brk", "madvise", "msync", "mincore", "membarrier", "clock_gettime", "clock_getres",
        "clock_nanosleep", "nanosleep", "gettimeofday", "time", "times", "getitimer",
        "setitimer", "alarm",
        "timerfd_create", "timerfd_settime", "timerfd_gettime",
        "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigtimedwait",
        "rt_sigsuspend", "sigaltstack", "pause", "signalfd", "signalfd4", "restart_syscall",
        "exit", "exit_group", "getpid", "getppid", "gettid", "getuid", "geteuid", "getgid",
        "getegid", "getgroups", "getresuid", "getresgid", "getpgrp", "getpgid", "getsid",
        "sched_yield", "sched_getaffinity", "sched_getparam", "sched_getscheduler",
        "sched_get_priority_max", "sched_get_priority_min", "getpriority", "wait4", "waitid",
        "set_tid_address", "set_robust_list", "futex", "futex_waitv", "rseq", "arch_prctl",
        "uname", "sysinfo", "getrusage", "getrlimit", "getrandom", "getcpu", "poll", "ppoll",
        "select", "pselect6", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait",
        "epoll_pwait", "epoll_pwait2", "eventfd", "eventfd2", "recvfrom", "shutdown",
        "getsockname", "getpeername", "getsockopt",
    ]
)  # fmt: skip

NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "read": 0, "write": 1, "readv": 19, "writev": 20, "pread64": 17, "pwrite64": 18,
        "preadv": 295, "pwritev": 296, "preadv2": 327, "pwritev2": 328, "open": 2, "openat":
        257, "creat": 85, "close": 3, "close_range": 436, "stat": 4, "fstat": 5, "lstat": 6,
        "newfstatat": 262, "statx": 332, "lseek": 8, "access": 21, "faccessat": 269,
        "faccessat2": 439, "readlink": 89, "readlinkat": 267, "getdents": 78, "getdents64":
        217, "getcwd": 79, "chdir": 80, "fchdir": 81, "mkdir": 83, "mkdirat": 258, "rmdir":
        84, "unlink": 87, "unlinkat": 263, "rename": 82, "renameat": 264, "renameat2": 316,
        "link": 86, "linkat": 265, "symlink": 88, "symlinkat": 266, "truncate": 76,
        "ftruncate": 77, "fallocate": 285, "chmod": 90, "fchmod": 91, "fchmodat": 268,
        "umask": 95, "fsync": 74, "fdatasync": 75, "flock": 73, "dup": 32, "dup2": 33,
        "dup3": 292, "pipe": 22, "pipe2": 293, "sendfile": 40, "copy_file_range": 326,
        "utime": 132, "utimes": 235, "utimensat": 280, "futimesat": 261, "statfs": 137,
        "fstatfs": 138, "fadvise64": 221, "mmap": 9, "munmap": 11, "mprotect": 10, "mremap":
        25, "brk": 12, "madvise": 28, "msync": 26, "mincore": 27, "membarrier": 324,
        "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "nanosleep": 35,
        "gettimeofday": 96, "time": 201, "times": 100, "getitimer": 36, "setitimer": 38,
        "alarm": 37,
        "timerfd_create": 283,
        "timerfd_settime": 286, "timerfd_gettime": 287, "rt_sigaction": 13,
        "rt_sigprocmask": 14, "rt_sigreturn": 15, "rt_sigpending": 127, "rt_sigtimedwait":
        128, "rt_sigsuspend": 130, "sigaltstack": 131, "pause": 34, "signalfd": 282,
        "signalfd4": 289, "restart_syscall": 219, "exit": 60, "exit_group": 231, "getpid":
        39, "getppid": 110, "gettid": 186, "getuid": 102, "geteuid": 107, "getgid": 104,
        "getegid": 108, "getgroups": 115, "getresuid": 118, "getresgid": 120, "getpgrp":
        111, "getpgid": 121, "getsid": 124, "sched_yield": 24, "sched_getaffinity": 204,
        "sched_getparam": 143, "sched_getscheduler": 145, "sched_get_priority_max": 146,
        "sched_get_priority_min": 147, "getpriority": 140, "wait4": 61, "waitid": 247,
        "set_tid_address": 218, "set_robust_list": 273, "futex": 202, "futex_waitv": 449,
        "rseq": 334, "arch_prctl": 158, "uname": 63, "sysinfo": 99, "getrusage": 98,
        "getrlimit": 97, "getrandom": 318, "getcpu": 309, "poll": 7, "ppoll": 271, "select":
        23, "pselect6": 270, "epoll_create": 213, "epoll_create1": 291, "epoll_ctl": 233,
        "epoll_wait": 232, "epoll_pwait": 281, "epoll_pwait2": 441, "eventfd": 284,
        "eventfd2": 290, "recvfrom": 45, "shutdown": 48, "getsockname": 51, "getpeername":
        52, "getsockopt": 55, "kill": 62, "tgkill": 234, "clone": 56, "fork": 57, "vfork":
        58, "clone3": 435, "openat2": 437, "fcntl": 72, "ioctl": 16, "prctl": 157,
        "prlimit64": 302, "sched_setaffinity": 203, "socketpair": 53, "sendto": 44,
    },
    "aarch64": {
        "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68,
        "preadv": 69, "pwritev": 70, "preadv2": 286, "pwritev2": 287, "openat": 56, "close":
        57, "close_range": 436, "fstat": 80, "newfstatat": 79, "statx": 291, "lseek": 62,
        "faccessat": 48, "faccessat2": 439, "readlinkat": 78, "getdents64": 61, "getcwd":
        17, "chdir": 49, "fchdir": 50, "mkdirat": 34, "unlinkat": 35, "renameat": 38,
        "renameat2": 276, "linkat": 37, "symlinkat": 36, "truncate": 45, "ftruncate": 46,
        "fallocate": 47, "fchmod": 52, "fchmodat": 53, "umask": 166, "fsync": 82,
        "fdatasync": 83, "flock": 32, "dup": 23, "dup3": 24, "pipe2": 59, "sendfile": 71,
        "copy_file_range": 285, "utimensat": 88, "statfs": 43, "fstatfs": 44, "fadvise64":
        223, "mmap": 222, "munmap": 215, "mprotect": 226, "mremap": 216, "brk": 214,
        "madvise": 233, "msync": 227, "mincore": 232, "membarrier": 283, "clock_gettime":
        113, "clock_getres": 114, "clock_nanosleep": 115, "nanosleep": 101, "gettimeofday":
        169, "times": 153, "getitimer": 102, "setitimer": 103,
        "timerfd_create": 85, "timerfd_settime": 86, "timerfd_gettime": 87,
        "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "rt_sigpending":
        136, "rt_sigtimedwait": 137, "rt_sigsuspend": 133, "sigaltstack": 132, "signalfd4":
        74, "restart_syscall": 128, "exit": 93, "exit_group": 94, "getpid": 172, "getppid":
        173, "gettid": 178, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177,
        "getgroups": 158, "getresuid": 148, "getresgid": 150, "getpgid": 155, "getsid": 156,
        "sched_yield": 124, "sched_getaffinity": 123, "sched_getparam": 121,
        "sched_getscheduler": 120, "sched_get_priority_max": 125, "sched_get_priority_min":
        126, "getpriority": 141, "wait4": 260, "waitid": 95, "set_tid_address": 96,
        "set_robust_list": 99, "futex": 98, "futex_waitv": 449, "rseq": 293, "uname": 160,
        "sysinfo": 179, "getrusage": 165, "getrlimit": 163, "getrandom": 278, "getcpu": 168,
        "ppoll": 73, "pselect6": 72, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait":
        22, "epoll_pwait2": 441, "eventfd2": 19, "recvfrom": 207, "shutdown": 210,
        "getsockname": 204, "getpeername": 205, "getsockopt": 209, "kill": 129, "tgkill":
        131, "clone": 220, "clone3": 435, "openat2": 437, "fcntl": 25, "ioctl": 29, "prctl":
        167, "prlimit64": 261, "sched_setaffinity": 122, "socketpair": 199, "sendto": 206,
    },
}  # fmt: skip
