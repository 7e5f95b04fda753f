// A process that locks with node-redlock, as it is told on its standard input: the orders of peer.py. Ends with its input.
//
// Several servers have commas between their URLs: a majority of them decides.
// Driven by crates/leasehold/tests/beside/plain_peers*.rs; `scripts/test --setup` installs it into target/plain.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(process.argv[3]);
const { default: Redis } = require("ioredis");
const { default: Redlock } = require("redlock");

const clients = process.argv[2].split(",").map((url) => new Redis(url));
// As often as it takes, or as often as fits into `ms`. No extension by itself: that is what `using` is for.
const redlock = (ms) =>
  new Redlock(clients, {
    retryCount: ms === undefined ? -1 : Math.ceil(ms / 100),
    retryDelay: 100,
    retryJitter: 20,
    automaticExtensionThreshold: 1,
  });
const patient = redlock();
const once = redlock(0);
const held = new Map();

// On several servers an attempt that fails keeps what it has got until the last one has failed: two processes would keep each other out
// for a lease. So each attempt is the last one.
async function acquire(name, ms) {
  if (clients.length === 1) return patient.acquire([name], ms);
  for (;;) {
    try {
      return await once.acquire([name], ms);
    } catch (failure) {
      if (failure.name !== "ExecutionError") throw failure;
      await sleep(80 + 40 * Math.random());
    }
  }
}

async function count(name, path, times) {
  for (let n = 0; n < times; n++) {
    const lock = await acquire(name, 30_000);
    const number = Number(readFileSync(path, "utf8"));
    await sleep(1);
    writeFileSync(path, String(number + 1));
    await lock.release();
  }
  return "counted";
}

async function obey([order, name, ...rest]) {
  switch (order) {
    case "lock":
      held.set(name, await acquire(name, Number(rest[0])));
      return "locked";
    case "try":
      try {
        held.set(name, await redlock(Number(rest[1])).acquire([name], Number(rest[0])));
        return "true";
      } catch (failure) {
        if (failure.name !== "ExecutionError") throw failure;
        return "false";
      }
    case "extend":
      held.set(name, await held.get(name).extend(Number(rest[0])));
      return "extended";
    case "unlock":
      // Once: a lease that is over cannot be given back.
      await once.release(held.get(name));
      held.delete(name);
      return "unlocked";
    case "count":
      return count(name, rest[0], Number(rest[1]));
    default:
      return "failed: there is no order " + order;
  }
}

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = await obey(line.split(" "));
  } catch (failure) {
    answer = "failed: " + failure;
  }
  console.log(answer);
}
process.exit(0);
