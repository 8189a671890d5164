"""Clients with aiolimiter and pyrate-limiter, as their READMEs use them: NAME ADDRESS CALLERS [REDIS]."""

import asyncio
import sys

import aiohttp

SIZE, PER_SECOND = 50, 200


async def limiter_of(name, redis_url):
    if name == "aiolimiter":
        from aiolimiter import AsyncLimiter

        limiter = AsyncLimiter(SIZE, SIZE / PER_SECOND)
        return limiter.acquire
    from pyrate_limiter import Limiter, Rate

    rates = [Rate(SIZE, 1000 * SIZE // PER_SECOND)]
    if redis_url:
        from pyrate_limiter import RedisBucket
        from redis.asyncio import Redis

        bucket = await RedisBucket.init(rates, Redis.from_url(redis_url), "bench")
        limiter = Limiter(bucket)
    else:
        limiter = Limiter(rates[0])

    async def acquire():
        await limiter.try_acquire_async("server")

    return acquire


async def main(name, address, callers, redis_url=None):
    acquire = await limiter_of(name, redis_url)
    async with aiohttp.ClientSession() as session:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def caller():
            while True:
                await acquire()
                async with session.get(f"http://{address}/call") as response:
                    await response.read()

        await asyncio.gather(*(caller() for _ in range(int(callers))))


asyncio.run(main(*sys.argv[1:]))
