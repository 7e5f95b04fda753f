//! Sorted sets.

use redis::Value;

use super::{
    Answer, Bytes, Entry, Keyspace, Stored,
    commands::{WRONG_TYPE, bulk, count},
    parse::{Limit, NO_LIMIT, SYNTAX, int, range, score, score_in_words},
};

impl Keyspace {
    fn sorted(&mut self, key: &[u8]) -> Result<Option<&mut Vec<(f64, Bytes)>>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Entry {
                value: Stored::Sorted(members),
                ..
            }) => Ok(Some(members)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    pub(super) fn zadd(&mut self, args: &[Bytes]) -> Answer {
        let (mut nx, mut xx, mut gt, mut lt, mut ch) = (false, false, false, false, false);
        let mut rest = &args[1..];
        while let Some((word, more)) = rest.split_first() {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" => nx = true,
                b"XX" => xx = true,
                b"GT" => gt = true,
                b"LT" => lt = true,
                b"CH" => ch = true,
                _ => break,
            }
            rest = more;
        }
        if rest.is_empty() || !rest.len().is_multiple_of(2) {
            return Err(SYNTAX.to_owned());
        }
        if nx && xx {
            return Err("ERR XX and NX options at the same time are not compatible".to_owned());
        }
        if (gt && lt) || (nx && (gt || lt)) {
            return Err(
                "ERR GT, LT, and/or NX options at the same time are not compatible".to_owned(),
            );
        }
        let pairs: Result<Vec<(f64, &Bytes)>, String> = rest
            .chunks_exact(2)
            .map(|pair| Ok((score(&pair[0])?, &pair[1])))
            .collect();
        let pairs = pairs?;
        let key = &args[0];
        if self.sorted(key)?.is_none() {
            if xx {
                return Ok(Value::Int(0));
            }
            let value = Stored::Sorted(Vec::new());
            self.keys.insert(key.clone(), Entry { value, ends: None });
        }
        let members = self.sorted(key)?.ok_or(WRONG_TYPE)?;
        let (mut added, mut changed) = (0, 0);
        for (score, member) in pairs {
            let at = members.iter().position(|(_, there)| there == member);
            match at.map(|at| (at, members[at].0)) {
                Some(_) if nx => continue,
                Some((_, before)) if (gt && score <= before) || (lt && score >= before) => continue,
                #[allow(clippy::float_cmp, reason = "the same number is no change")]
                Some((_, before)) if score == before => continue,
                Some((at, _)) => {
                    members.remove(at);
                    changed += 1;
                }
                None if xx => continue,
                None => added += 1,
            }
            let new = (score, member.clone());
            let before = |there: &(f64, Bytes)| {
                there
                    .0
                    .total_cmp(&(new.0 + 0.0))
                    .then_with(|| there.1.cmp(&new.1))
                    .is_lt()
            };
            let at = members.partition_point(before);
            // Without a negative zero, which is as large as the other.
            members.insert(at, (new.0 + 0.0, new.1));
        }
        self.tidy(key);
        Ok(Value::Int(if ch { added + changed } else { added }))
    }

    pub(super) fn zcard(&mut self, args: &[Bytes]) -> Answer {
        Ok(count(
            self.sorted(&args[0])?.map_or(0, |members| members.len()),
        ))
    }

    pub(super) fn zscore(&mut self, args: &[Bytes]) -> Answer {
        let members = self.sorted(&args[0])?;
        let found = members.and_then(|all| all.iter().find(|(_, member)| *member == args[1]));
        Ok(found.map_or(Value::Nil, |(score, _)| bulk(score_in_words(*score))))
    }

    pub(super) fn zrem(&mut self, args: &[Bytes]) -> Answer {
        let Some(members) = self.sorted(&args[0])? else {
            return Ok(Value::Int(0));
        };
        let before = members.len();
        members.retain(|(_, member)| !args[1..].contains(member));
        let gone = before - members.len();
        self.tidy(&args[0]);
        Ok(count(gone))
    }

    pub(super) fn zcount(&mut self, args: &[Bytes]) -> Answer {
        let (min, max) = (Limit::read(&args[1])?, Limit::read(&args[2])?);
        let members = self.sorted(&args[0])?;
        let found = members.map_or(0, |all| {
            let within = all
                .iter()
                .filter(|(score, _)| min.is_below(*score) && max.is_above(*score));
            within.count()
        });
        Ok(count(found))
    }

    pub(super) fn zrange(&mut self, args: &[Bytes]) -> Answer {
        let (mut scores, mut reversed) = (false, false);
        for word in &args[3..] {
            match word.to_ascii_uppercase().as_slice() {
                b"WITHSCORES" => scores = true,
                b"REV" => reversed = true,
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        let (from, to) = (int(&args[1])?, int(&args[2])?);
        let Some(members) = self.sorted(&args[0])? else {
            return Ok(Value::Array(Vec::new()));
        };
        let found = range(from, to, members.len());
        Ok(if reversed {
            let mut all = members.clone();
            all.reverse();
            told(&all[found], scores)
        } else {
            told(&members[found], scores)
        })
    }

    pub(super) fn zrangebyscore(&mut self, args: &[Bytes]) -> Answer {
        let (Ok(min), Ok(max)) = (Limit::read(&args[1]), Limit::read(&args[2])) else {
            return Err(NO_LIMIT.to_owned());
        };
        let (mut scores, mut from, mut most) = (false, 0, -1);
        let mut words = args[3..].iter();
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_slice() {
                b"WITHSCORES" => scores = true,
                b"LIMIT" => {
                    let (Some(first), Some(second)) = (words.next(), words.next()) else {
                        return Err(SYNTAX.to_owned());
                    };
                    (from, most) = (int(first)?, int(second)?);
                }
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        let Some(members) = self.sorted(&args[0])? else {
            return Ok(Value::Array(Vec::new()));
        };
        let Ok(from) = usize::try_from(from) else {
            return Ok(Value::Array(Vec::new()));
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let within = members
            .iter()
            .filter(|(score, _)| min.is_below(*score) && max.is_above(*score));
        let found: Vec<_> = within.skip(from).take(most).cloned().collect();
        Ok(told(&found, scores))
    }

    pub(super) fn zremrangebyscore(&mut self, args: &[Bytes]) -> Answer {
        let (min, max) = (Limit::read(&args[1])?, Limit::read(&args[2])?);
        let Some(members) = self.sorted(&args[0])? else {
            return Ok(Value::Int(0));
        };
        let before = members.len();
        members.retain(|(score, _)| !(min.is_below(*score) && max.is_above(*score)));
        let gone = before - members.len();
        self.tidy(&args[0]);
        Ok(count(gone))
    }

    pub(super) fn zremrangebyrank(&mut self, args: &[Bytes]) -> Answer {
        let (from, to) = (int(&args[1])?, int(&args[2])?);
        let Some(members) = self.sorted(&args[0])? else {
            return Ok(Value::Int(0));
        };
        let gone = range(from, to, members.len());
        let gone = members.drain(gone).count();
        self.tidy(&args[0]);
        Ok(count(gone))
    }
}

fn told(members: &[(f64, Bytes)], scores: bool) -> Value {
    let words = members.iter().flat_map(|(score, member)| {
        let score = scores.then(|| bulk(score_in_words(*score)));
        std::iter::once(bulk(member.clone())).chain(score)
    });
    Value::Array(words.collect())
}
