// A process that locks with node-redlock, as it is told on its standard input: the orders of peer.py. Ends with its input.
//
// Driven by crates/leasehold/tests/plain_peers.rs; `scripts/test --setup` installs it into target/plain.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(process.argv[3]);
const { default: Redis } = require("ioredis");
const { default: Redlock } = require("redlock");

const client = new Redis(process.argv[2]);
// As often as it takes, or as often as fits into `ms`. No extension by itself: that is what `using` is for.
const redlock = (ms) =>
  new Redlock([client], {
    retryCount: ms === undefined ? -1 : Math.ceil(ms / 100),
    retryDelay: 100,
    retryJitter: 20,
    automaticExtensionThreshold: 1,
  });
const patient = redlock();
const held = new Map();

async function count(name, path, times) {
  for (let n = 0; n < times; n++) {
    const lock = await patient.acquire([name], 30_000);
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
      held.set(name, await patient.acquire([name], Number(rest[0])));
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
      await redlock(0).release(held.get(name));
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
