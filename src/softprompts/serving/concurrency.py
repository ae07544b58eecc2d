"""Coroutines and streams that run together. The first error, or being cancelled, ends all."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order."""
    coroutines = list(coroutines)
    if len(coroutines) == 1:  # needs no task
        return [await coroutines[0]]
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """The items of all streams as they come, with the numbers of their streams."""
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()

    async def read(number: int, stream: Any) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    queue.put_nowait((number, item))
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    readers = [asyncio.create_task(read(*pair)) for pair in enumerate(streams)]
    unfinished = len(readers)
    try:
        while unfinished:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                unfinished -= 1
            else:
                yield item
    finally:
        await cancel(readers)


async def cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what still runs, and wait until it has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
