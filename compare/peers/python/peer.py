"""A process that locks with redis-py's Lock, as it is told on its standard input (compare/README.md). A task is a thread."""

import os
import queue
import sys
import threading
import time

import redis

_, address, lease = sys.argv[1:]
host, port = address.split(":")
client = redis.Redis(host=host, port=int(port))
# Its default is a lock without an end.
TIMEOUT = int(lease) / 1000 or None
frees = {}


def say(line):
    # In one piece: threads speak here, and `print` writes the end of the line by itself.
    os.write(1, (line + "\n").encode())


def micros():
    return time.monotonic_ns() // 1000


def count(file):
    """Adds one to the number in the file. Other threads run between the two halves, so that a holder who is not alone loses a count."""
    number = int(os.pread(file, 12, 0))
    time.sleep(0)
    os.pwrite(file, b"%012d" % (number + 1), 0)


def until(end, name, file, done):
    inside, waits = 0, []
    while (asked := micros()) < end:
        with client.lock(name, timeout=TIMEOUT):
            waits.append(micros() - asked)
            if file is not None:
                count(file)
        inside += micros() <= end
    done.append((inside, waits))


def work(tasks, names, name, ms, path):
    file = None if path == "-" else os.open(path, os.O_RDWR)
    end, done = micros() + int(ms) * 1000, []
    threads = [threading.Thread(target=until, args=(end, f"{name}:{i % int(names)}", file, done)) for i in range(int(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) < len(threads):
        return "failed a thread has ended before its time; see its error above"
    waits = sorted(wait for _, waits in done for wait in waits) or [0]
    p50, p99, longest = (waits[min(len(waits) * percent // 100, len(waits) - 1)] for percent in (50, 99, 100))
    return f"worked {sum(inside for inside, _ in done)} {len(waits)} {p50} {p99} {longest}"


def keep(name):
    lock = client.lock(name, timeout=TIMEOUT)
    lock.acquire()
    at, free = micros(), threading.Event()
    frees[name] = free
    say(f"got {name} {at}")
    free.wait()
    at = micros()
    lock.release()
    say(f"freed {name} {at}")


def obey(order, *rest):
    if order == "work":
        return work(*rest)
    if order == "take":
        for _ in range(int(rest[1])):
            threading.Thread(target=keep, args=(rest[0],), daemon=True).start()
    elif order == "free":
        frees.pop(rest[0]).set()
    else:
        return f"failed there is no order {order}"


say(f"ready\t{redis.__version__}\tno end, not renewed; asks again each 100 ms")
orders = queue.SimpleQueue()


def obey_all():
    while True:
        try:
            answer = obey(*orders.get().split())
        except Exception as failure:
            answer = f"failed {failure!r}"
        if answer is not None:
            say(answer)


threading.Thread(target=obey_all, daemon=True).start()
for line in sys.stdin:
    orders.put(line)
# In any case, also while tasks wait for a server that has ended with the runner.
os._exit(0)
