"""Code that runs on the far side of the exec: keeper, zygote and the child that runs a program."""
