"""A process that locks with redis-py's Lock, as it is told on its standard input: a line in, a line out. Ends with its input.

Several servers, with commas between their URLs, are locked by pottery's Redlock: a majority decides. Then it only counts.
Driven by crates/leasehold/tests/beside/plain_peers*.rs; `scripts/test --setup` installs redis-py and pottery into target/plain.

  lock NAME LEASE_MS      waits                                  locked
  try NAME LEASE_MS MS    waits so long                          true | false
  extend NAME LEASE_MS    to so long from now                    extended
  unlock NAME                                                    unlocked
  count NAME FILE TIMES   adds one to the number in the file,
                          so many times, under the lock          counted
"""

import sys
import time

import redis
from redis.lock import Lock

clients = [redis.Redis.from_url(url) for url in sys.argv[1].split(",")]
client = clients[0]
held = {}


def lock_of(name):
    if len(clients) == 1:
        return Lock(client, name, timeout=30)
    from pottery import Redlock

    # It writes `redlock:` before the name. Its vote of a server that it did not wait for may be left there for a lease: a short one.
    return Redlock(key=name.removeprefix("redlock:"), masters=set(clients), auto_release_time=5)


def count(name, path, times):
    for _ in range(times):
        with lock_of(name):
            with open(path) as file:
                number = int(file.read())
            time.sleep(0.001)
            with open(path, "w") as file:
                file.write(str(number + 1))
    return "counted"


def obey(order, name, *rest):
    if order == "lock":
        lock = Lock(client, name, timeout=int(rest[0]) / 1000)
        lock.acquire()
        held[name] = lock
        return "locked"
    if order == "try":
        lock = Lock(client, name, timeout=int(rest[0]) / 1000)
        wait = int(rest[1]) / 1000
        if not lock.acquire(blocking=wait > 0, blocking_timeout=wait or None):
            return "false"
        held[name] = lock
        return "true"
    if order == "extend":
        held[name].extend(int(rest[0]) / 1000, replace_ttl=True)
        return "extended"
    if order == "unlock":
        held.pop(name).release()
        return "unlocked"
    if order == "count":
        return count(name, rest[0], int(rest[1]))
    return "failed: there is no order " + order


print("ready", flush=True)
for line in sys.stdin:
    try:
        answer = obey(*line.split())
    except Exception as failure:
        answer = f"failed: {failure!r}"
    print(answer, flush=True)
