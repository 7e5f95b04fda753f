// A process that locks with node-redlock, as it is told on its standard input (compare/README.md).

import { openSync, readFileSync, readSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

import Redis from "ioredis";
import Redlock, { ExecutionError } from "redlock";

const [, address, lease] = process.argv.slice(2);
const [host, port] = address.split(":");
// The settings of its README.
const redlock = new Redlock([new Redis({ host, port: Number(port) })], {
  driftFactor: 0.01,
  retryCount: 10,
  retryDelay: 200,
  retryJitter: 200,
  automaticExtensionThreshold: 500,
});
const LEASE_MS = Number(lease) || 5000;
const frees = new Map();
const micros = () => process.hrtime.bigint() / 1000n;
const othersRun = () => new Promise((resolve) => setImmediate(resolve));

// As `using` of its README; asked again when it has given up after its ten attempts.
async function using(name, routine) {
  for (let had = false; !had; ) {
    try {
      await redlock.using([name], LEASE_MS, async () => {
        had = true;
        await routine();
      });
    } catch (failure) {
      if (had || !(failure instanceof ExecutionError)) throw failure;
    }
  }
}

// Adds one to the number in the file. Other tasks run between the two halves, so that a holder who is not alone loses a count.
const digits = Buffer.alloc(12);
async function count(file) {
  readSync(file, digits, 0, 12, 0);
  const number = Number(digits.toString());
  await othersRun();
  writeSync(file, String(number + 1).padStart(12, "0"), 0);
}

async function until(end, name, file, done) {
  for (;;) {
    const asked = micros();
    if (asked >= end) return;
    await using(name, async () => {
      done.waits.push(Number(micros() - asked));
      if (file !== undefined) await count(file);
    });
    if (micros() <= end) done.inside += 1;
  }
}

async function work(tasks, names, name, ms, path) {
  const file = path === "-" ? undefined : openSync(path, "r+");
  const end = micros() + BigInt(ms) * 1000n;
  const done = { inside: 0, waits: [] };
  await Promise.all(Array.from({ length: Number(tasks) }, (_, i) => until(end, `${name}:${i % Number(names)}`, file, done)));
  const sorted = Float64Array.from(done.waits).sort();
  const at = (percent) => sorted[Math.min(Math.floor((sorted.length * percent) / 100), sorted.length - 1)] ?? 0;
  return `worked ${done.inside} ${sorted.length} ${at(50)} ${at(99)} ${at(100)}`;
}

async function keep(name) {
  let began;
  await using(name, async () => {
    const at = micros();
    const freed = new Promise((resolve) => frees.set(name, resolve));
    console.log(`got ${name} ${at}`);
    await freed;
    began = micros();
  });
  console.log(`freed ${name} ${began}`);
}

function obey([order, name, ...rest]) {
  switch (order) {
    case "work":
      return work(name, ...rest);
    case "take":
      for (let task = 0; task < Number(rest[0]); task++) keep(name).catch((failure) => console.log(`failed ${failure}`));
      return undefined;
    case "free":
      frees.get(name)();
      frees.delete(name);
      return undefined;
    default:
      return `failed: there is no order ${order}`;
  }
}

const version = (name) => JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version.replace(/^v/, "");
const SETTINGS = "`using` of 5 s, renewed 0.5 s before the end; asks again after 200 to 400 ms, gives up after 10 times and is called again";
console.log(`ready\t${version("redlock")}, ioredis ${version("ioredis")}\t${SETTINGS}`);
const lines = createInterface({ input: process.stdin });
lines.on("line", async (line) => {
  let answer;
  try {
    answer = await obey(line.split(" "));
  } catch (failure) {
    answer = `failed ${failure}`;
  }
  if (answer !== undefined) console.log(answer);
});
// In any case, also while tasks wait for a server that has ended with the runner.
lines.on("close", () => process.exit(0));
