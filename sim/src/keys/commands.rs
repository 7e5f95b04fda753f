//! The commands of scripts: which there are, and those about keys, texts, hashes and channels.

use redis::Value;

use super::{
    Answer, Bytes, Entry, Keyspace, Stored,
    parse::{SYNTAX, fits, int, range},
};
use leasehold::sim::Published;

pub(super) const WRONG_TYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The properties of a command at which a server looks before it carries the command out.
#[derive(Clone, Copy)]
pub(super) struct Flags {
    pub(super) writes: bool,
    /// It is refused by a server that has no memory.
    pub(super) needs_memory: bool,
}

/// Each command, how many arguments it has at least and at most, and whether it writes (w) and may need memory (m).
pub const COMMANDS: &[(&str, usize, usize, &str)] = &[
    ("DBSIZE", 0, 0, ""),
    ("DEL", 1, MANY, "w"),
    ("UNLINK", 1, MANY, "w"),
    ("EXISTS", 1, MANY, ""),
    ("GET", 1, 1, ""),
    ("GETRANGE", 3, 3, ""),
    ("HDEL", 2, MANY, "w"),
    ("HEXISTS", 2, 2, ""),
    ("HGET", 2, 2, ""),
    ("HGETALL", 1, 1, ""),
    ("HINCRBY", 3, 3, "wm"),
    ("HKEYS", 1, 1, ""),
    ("HLEN", 1, 1, ""),
    ("HMGET", 2, MANY, ""),
    ("HRANDFIELD", 1, 3, ""),
    ("HSET", 3, MANY, "wm"),
    ("HSETNX", 3, 3, "wm"),
    ("HSTRLEN", 2, 2, ""),
    ("HVALS", 1, 1, ""),
    ("INCR", 1, 1, "wm"),
    ("DECR", 1, 1, "wm"),
    ("INCRBY", 2, 2, "wm"),
    ("DECRBY", 2, 2, "wm"),
    ("LINDEX", 2, 2, ""),
    ("LINSERT", 4, 4, "wm"),
    ("LLEN", 1, 1, ""),
    ("LPOP", 1, 2, "w"),
    ("RPOP", 1, 2, "w"),
    ("LPUSH", 2, MANY, "wm"),
    ("RPUSH", 2, MANY, "wm"),
    ("LRANGE", 3, 3, ""),
    ("LREM", 3, 3, "w"),
    ("LSET", 3, 3, "wm"),
    ("PERSIST", 1, 1, "w"),
    ("EXPIRE", 2, 3, "w"),
    ("PEXPIRE", 2, 3, "w"),
    ("PEXPIREAT", 2, 3, "w"),
    ("PTTL", 1, 1, ""),
    ("PUBLISH", 2, 2, ""),
    ("PUBSUB", 1, MANY, ""),
    ("SCAN", 1, MANY, ""),
    ("SET", 2, MANY, "wm"),
    ("TIME", 0, 0, ""),
    ("TYPE", 1, 1, ""),
    ("ZADD", 3, MANY, "wm"),
    ("ZCARD", 1, 1, ""),
    ("ZCOUNT", 3, 3, ""),
    ("ZRANGE", 3, MANY, ""),
    ("ZRANGEBYSCORE", 3, MANY, ""),
    ("ZREM", 2, MANY, "w"),
    ("ZREMRANGEBYRANK", 3, 3, "w"),
    ("ZREMRANGEBYSCORE", 3, 3, "w"),
    ("ZSCORE", 2, 2, ""),
];

const MANY: usize = usize::MAX;

pub(super) fn flags(args: &[Bytes]) -> Result<Flags, String> {
    let Some((name, rest)) = args.split_first() else {
        return Err(
            "ERR Please specify at least one argument for this redis.call() call".to_owned(),
        );
    };
    let found = COMMANDS
        .iter()
        .find(|(known, ..)| known.as_bytes().eq_ignore_ascii_case(name));
    let Some((_, least, most, flags)) = found else {
        return Err("ERR Unknown Redis command called from script".to_owned());
    };
    if rest.len() < *least || rest.len() > *most {
        return Err("ERR Wrong number of args calling Redis command from script".to_owned());
    }
    Ok(Flags {
        writes: flags.contains('w'),
        needs_memory: flags.contains('m'),
    })
}

pub(super) fn bulk(text: impl Into<Bytes>) -> Value {
    Value::BulkString(text.into())
}

pub(super) fn count(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn flag(is: bool) -> Value {
    Value::Int(i64::from(is))
}

fn wrong_args(command: &str) -> String {
    format!("ERR wrong number of arguments for '{command}' command")
}

impl Keyspace {
    /// A command whose number of arguments is right.
    pub(super) fn command(&mut self, args: &[Bytes]) -> Answer {
        let (name, rest) = (args[0].to_ascii_uppercase(), &args[1..]);
        match name.as_slice() {
            b"DEL" | b"UNLINK" => Ok(count(rest.iter().filter(|key| self.delete(key)).count())),
            b"EXISTS" => Ok(count(
                rest.iter().filter(|key| self.get(key).is_some()).count(),
            )),
            b"GET" => Ok(self
                .text(&rest[0])?
                .map_or(Value::Nil, |text| bulk(text.clone()))),
            b"GETRANGE" => {
                let (from, to) = (int(&rest[1])?, int(&rest[2])?);
                let text = self.text(&rest[0])?.cloned().unwrap_or_default();
                Ok(bulk(part(&text, from, to)))
            }
            b"SET" => self.set(rest),
            b"INCR" => self.add(&rest[0], 1),
            b"DECR" => self.add(&rest[0], -1),
            b"INCRBY" => self.add(&rest[0], int(&rest[1])?),
            b"DECRBY" => {
                let by = int(&rest[1])?;
                let by = by.checked_neg().ok_or("ERR decrement would overflow")?;
                self.add(&rest[0], by)
            }
            b"TYPE" => {
                let kind = self
                    .get(&rest[0])
                    .map_or("none", |entry| entry.value.kind());
                Ok(Value::SimpleString(kind.to_owned()))
            }
            b"TIME" => {
                let (seconds, micros) = (self.now / 1_000_000, self.now % 1_000_000);
                Ok(Value::Array(vec![
                    bulk(seconds.to_string()),
                    bulk(micros.to_string()),
                ]))
            }
            b"DBSIZE" => Ok(Value::Int(
                i64::try_from(self.keys.len()).unwrap_or(i64::MAX),
            )),
            b"PTTL" => Ok(Value::Int(self.ttl(&rest[0]))),
            b"PERSIST" => {
                let had = self
                    .get(&rest[0])
                    .is_some_and(|entry| entry.ends.take().is_some());
                Ok(flag(had))
            }
            b"EXPIRE" => self.end_at(rest, "expire", 1_000),
            b"PEXPIRE" => self.end_at(rest, "pexpire", 1),
            b"PEXPIREAT" => self.end_at(rest, "pexpireat", 0),
            b"HSET" => self.hset(rest),
            b"HSETNX" => match self.field(&rest[0], &rest[1])? {
                Some(_) => Ok(Value::Int(0)),
                None => self.hset(rest),
            },
            b"HINCRBY" => self.hincrby(rest),
            b"HDEL" => self.hdel(rest),
            b"HGET" => Ok(self.field(&rest[0], &rest[1])?.map_or(Value::Nil, bulk)),
            b"HMGET" => {
                let found = rest[1..].iter().map(|field| self.field(&rest[0], field));
                let found = found.map(|field| Ok(field?.map_or(Value::Nil, bulk)));
                Ok(Value::Array(found.collect::<Result<_, String>>()?))
            }
            b"HEXISTS" => Ok(flag(self.field(&rest[0], &rest[1])?.is_some())),
            b"HSTRLEN" => Ok(count(
                self.field(&rest[0], &rest[1])?
                    .map_or(0, |value| value.len()),
            )),
            b"HLEN" => Ok(count(self.hash(&rest[0])?.map_or(0, |fields| fields.len()))),
            b"HKEYS" => self.fields(&rest[0], true, false),
            b"HVALS" => self.fields(&rest[0], false, true),
            b"HGETALL" => self.fields(&rest[0], true, true),
            b"HRANDFIELD" => self.some_fields(rest),
            b"LPUSH" => self.push(rest, true),
            b"RPUSH" => self.push(rest, false),
            b"LPOP" => self.pop(rest, true),
            b"RPOP" => self.pop(rest, false),
            b"LLEN" => self.llen(rest),
            b"LINDEX" => self.lindex(rest),
            b"LSET" => self.lset(rest),
            b"LRANGE" => self.lrange(rest),
            b"LREM" => self.lrem(rest),
            b"LINSERT" => self.linsert(rest),
            b"ZADD" => self.zadd(rest),
            b"ZCARD" => self.zcard(rest),
            b"ZCOUNT" => self.zcount(rest),
            b"ZRANGE" => self.zrange(rest),
            b"ZRANGEBYSCORE" => self.zrangebyscore(rest),
            b"ZREM" => self.zrem(rest),
            b"ZREMRANGEBYRANK" => self.zremrangebyrank(rest),
            b"ZREMRANGEBYSCORE" => self.zremrangebyscore(rest),
            b"ZSCORE" => self.zscore(rest),
            b"PUBLISH" => Ok(self.publish(&rest[0], &rest[1])),
            b"PUBSUB" => self.pubsub(rest),
            b"SCAN" => self.scan(rest),
            _ => Err("ERR Unknown Redis command called from script".to_owned()),
        }
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        self.expire(key);
        self.keys.remove(key).is_some()
    }

    fn text(&mut self, key: &[u8]) -> Result<Option<&Bytes>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Entry {
                value: Stored::Text(text),
                ..
            }) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn ttl(&mut self, key: &[u8]) -> i64 {
        let now = self.now_ms();
        match self.get(key).map(|entry| entry.ends) {
            None => -2,
            Some(None) => -1,
            Some(Some(ends)) => i64::try_from(ends.saturating_sub(now)).unwrap_or(i64::MAX),
        }
    }

    fn set(&mut self, args: &[Bytes]) -> Answer {
        let (mut only_new, mut only_old, mut keeps, mut ends) = (false, false, false, None);
        let mut words = args[2..].iter();
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" if !only_old => only_new = true,
                b"XX" if !only_new => only_old = true,
                b"KEEPTTL" if ends.is_none() => keeps = true,
                unit @ (b"PX" | b"EX") if ends.is_none() && !keeps => {
                    let time = words.next().ok_or(SYNTAX)?;
                    ends = Some((time, if unit == b"PX" { 1 } else { 1_000 }));
                }
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        let now = i64::try_from(self.now_ms()).unwrap_or(i64::MAX);
        let ends = match ends {
            None => None,
            Some((time, unit)) => {
                let time = int(time)?;
                let ends = time
                    .checked_mul(unit)
                    .and_then(|time| time.checked_add(now));
                let ends = ends.filter(|_| time > 0);
                Some(ends.ok_or("ERR invalid expire time in 'set' command")?)
            }
        };
        let there = self.get(&args[0]).map(|entry| entry.ends);
        if (only_new && there.is_some()) || (only_old && there.is_none()) {
            return Ok(Value::Nil);
        }
        let before = there.flatten().filter(|_| keeps);
        let ends = ends.and_then(|ends| u64::try_from(ends).ok()).or(before);
        let value = Stored::Text(args[1].clone());
        self.keys.insert(args[0].clone(), Entry { value, ends });
        Ok(Value::Okay)
    }

    fn add(&mut self, key: &[u8], by: i64) -> Answer {
        let before = match self.text(key)? {
            None => 0,
            Some(text) => int(text)?,
        };
        let overflow = "ERR increment or decrement would overflow";
        let after = before.checked_add(by).ok_or(overflow)?;
        let value = Stored::Text(after.to_string().into_bytes());
        match self.get(key) {
            Some(entry) => entry.value = value,
            None => {
                self.keys.insert(key.to_vec(), Entry { value, ends: None });
            }
        }
        Ok(Value::Int(after))
    }

    /// `unit`: milliseconds of the number, from now on; zero: since 1970.
    fn end_at(&mut self, args: &[Bytes], command: &str, unit: i64) -> Answer {
        let time = int(&args[1])?;
        let condition = args.get(2).map(|word| word.to_ascii_uppercase());
        let now = i64::try_from(self.now_ms()).unwrap_or(i64::MAX);
        let ends = if unit == 0 {
            Some(time)
        } else {
            time.checked_mul(unit)
                .and_then(|time| time.checked_add(now))
        };
        let ends = ends.ok_or_else(|| format!("ERR invalid expire time in '{command}' command"))?;
        if let Some(condition) = &condition
            && ![&b"NX"[..], b"XX", b"GT", b"LT"].contains(&condition.as_slice())
        {
            let word = String::from_utf8_lossy(&args[2]);
            return Err(format!("ERR Unsupported option {word}"));
        }
        let Some(entry) = self.get(&args[0]) else {
            return Ok(Value::Int(0));
        };
        let before = entry
            .ends
            .map(|ends| i64::try_from(ends).unwrap_or(i64::MAX));
        let fits = match condition.as_deref() {
            Some(b"NX") => before.is_none(),
            Some(b"XX") => before.is_some(),
            Some(b"GT") => before.is_some_and(|before| ends > before),
            Some(b"LT") => before.is_none_or(|before| ends < before),
            _ => true,
        };
        if !fits {
            return Ok(Value::Int(0));
        }
        match u64::try_from(ends) {
            Ok(at) if ends > now => entry.ends = Some(at),
            _ => {
                self.delete(&args[0]);
            }
        }
        Ok(Value::Int(1))
    }

    fn hash(&mut self, key: &[u8]) -> Result<Option<&mut Vec<(Bytes, Bytes)>>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Entry {
                value: Stored::Hash(fields),
                ..
            }) => Ok(Some(fields)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn field(&mut self, key: &[u8], field: &[u8]) -> Result<Option<Bytes>, String> {
        let fields = self.hash(key)?;
        let found = fields.and_then(|all| all.iter().find(|(name, _)| name == field));
        Ok(found.map(|(_, value)| value.clone()))
    }

    fn hset(&mut self, args: &[Bytes]) -> Answer {
        if args.len().is_multiple_of(2) {
            return Err(wrong_args("hset"));
        }
        if self.hash(&args[0])?.is_none() {
            let value = Stored::Hash(Vec::new());
            self.keys
                .insert(args[0].clone(), Entry { value, ends: None });
        }
        let fields = self.hash(&args[0])?.ok_or(WRONG_TYPE)?;
        let mut added = 0;
        for pair in args[1..].chunks_exact(2) {
            if let Some((_, value)) = fields.iter_mut().find(|(name, _)| *name == pair[0]) {
                value.clone_from(&pair[1]);
            } else {
                fields.push((pair[0].clone(), pair[1].clone()));
                added += 1;
            }
        }
        Ok(Value::Int(added))
    }

    fn hincrby(&mut self, args: &[Bytes]) -> Answer {
        let by = int(&args[2])?;
        let before = match self.field(&args[0], &args[1])? {
            None => 0,
            Some(text) => int(&text).map_err(|_| "ERR hash value is not an integer")?,
        };
        let overflow = "ERR increment or decrement would overflow";
        let after = before.checked_add(by).ok_or(overflow)?;
        self.hset(&[
            args[0].clone(),
            args[1].clone(),
            after.to_string().into_bytes(),
        ])?;
        Ok(Value::Int(after))
    }

    fn hdel(&mut self, args: &[Bytes]) -> Answer {
        let Some(fields) = self.hash(&args[0])? else {
            return Ok(Value::Int(0));
        };
        let before = fields.len();
        fields.retain(|(name, _)| !args[1..].contains(name));
        let gone = before - fields.len();
        self.tidy(&args[0]);
        Ok(count(gone))
    }

    fn fields(&mut self, key: &[u8], names: bool, values: bool) -> Answer {
        let Some(fields) = self.hash(key)? else {
            return Ok(Value::Array(Vec::new()));
        };
        let all = fields.iter().flat_map(|(name, value)| {
            let name = names.then(|| bulk(name.clone()));
            name.into_iter().chain(values.then(|| bulk(value.clone())))
        });
        Ok(Value::Array(all.collect()))
    }

    /// The first ones: a server takes any.
    fn some_fields(&mut self, args: &[Bytes]) -> Answer {
        let Some(many) = args.get(1) else {
            let fields = self.hash(&args[0])?;
            let first = fields.and_then(|all| all.first());
            return Ok(first.map_or(Value::Nil, |(name, _)| bulk(name.clone())));
        };
        let many = usize::try_from(int(many)?).unwrap_or(0);
        let values = match args.get(2) {
            Some(word) if word.eq_ignore_ascii_case(b"WITHVALUES") => true,
            Some(_) => return Err(SYNTAX.to_owned()),
            None => false,
        };
        let Some(fields) = self.hash(&args[0])? else {
            return Ok(Value::Array(Vec::new()));
        };
        let some = fields.iter().take(many).flat_map(|(name, value)| {
            let value = values.then(|| bulk(value.clone()));
            std::iter::once(bulk(name.clone())).chain(value)
        });
        Ok(Value::Array(some.collect()))
    }

    fn publish(&mut self, channel: &[u8], payload: &[u8]) -> Value {
        let Some(listeners) = self.channels.get(channel) else {
            return Value::Int(0);
        };
        for client in listeners {
            self.published.push(Published {
                client: client.clone(),
                channel: String::from_utf8_lossy(channel).into_owned(),
                payload: payload.to_vec(),
            });
        }
        count(listeners.len())
    }

    fn pubsub(&mut self, args: &[Bytes]) -> Answer {
        if !args[0].eq_ignore_ascii_case(b"NUMSUB") {
            return Err("ERR Unknown Redis command called from script".to_owned());
        }
        let counts = args[1..].iter().flat_map(|channel| {
            let listeners = self
                .channels
                .get(channel)
                .map_or(0, std::collections::BTreeSet::len);
            [bulk(channel.clone()), count(listeners)]
        });
        Ok(Value::Array(counts.collect()))
    }

    /// All keys on one page.
    fn scan(&mut self, args: &[Bytes]) -> Answer {
        int(&args[0]).map_err(|_| "ERR invalid cursor")?;
        let mut pattern: &[u8] = b"*";
        for pair in args[1..].chunks(2) {
            let [word, value] = pair else {
                return Err(SYNTAX.to_owned());
            };
            match word.to_ascii_uppercase().as_slice() {
                b"MATCH" => pattern = value,
                b"COUNT" if int(value)? > 0 => {}
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        let mut found = leasehold::sim::ScriptServer::keys(self);
        found.retain(|key| fits(pattern, key));
        found.sort();
        let found = found.into_iter().map(bulk).collect();
        Ok(Value::Array(vec![bulk("0"), Value::Array(found)]))
    }
}

/// From one byte to another, that included.
fn part(text: &[u8], from: i64, to: i64) -> Bytes {
    if from < 0 && to < 0 && from > to {
        return Bytes::new();
    }
    let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
    // Before the first byte is the first.
    let to = if to < 0 {
        (to.saturating_add(length)).max(0)
    } else {
        to
    };
    text[range(from, to, text.len())].to_vec()
}
