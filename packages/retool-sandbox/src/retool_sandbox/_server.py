"""Start the service, and stop it gracefully on SIGINT or SIGTERM."""

import asyncio
import signal

from aiohttp import web

from ._sandbox import Sandbox
from ._service import Service, ServiceConfig

DRAIN_S = 30.0


async def serve(
    sandbox: Sandbox,
    config: ServiceConfig,
    *,
    host: str,
    port: int,
    concurrency: int,
    announce: asyncio.Future[int] | None = None,
) -> None:
    """Serve an unopened sandbox until SIGINT or SIGTERM.

    Args:
        announce: Receives the port once the service listens (port 0 picks a free one).
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with sandbox:
            service = Service(sandbox, config, concurrency=concurrency)
            # A client that hangs up takes its run with it.
            runner = web.AppRunner(service.app(), handler_cancellation=True, access_log=None)
            await runner.setup()
            try:
                site = web.TCPSite(runner, host, port)
                await site.start()
                if announce is not None:
                    announce.set_result(runner.addresses[0][1])
                await stop.wait()
                await service.drain(DRAIN_S)
            finally:
                await runner.cleanup()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
