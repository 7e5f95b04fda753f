//! Lists.

use std::collections::VecDeque;

use redis::Value;

use super::{
    Answer, Bytes, Entry, Keyspace, Stored,
    commands::{WRONG_TYPE, bulk, count},
    parse::{SYNTAX, int, range},
};

impl Keyspace {
    fn list(&mut self, key: &[u8]) -> Result<Option<&mut VecDeque<Bytes>>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Entry {
                value: Stored::List(items),
                ..
            }) => Ok(Some(items)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    pub(super) fn push(&mut self, args: &[Bytes], first: bool) -> Answer {
        if self.list(&args[0])?.is_none() {
            let value = Stored::List(VecDeque::new());
            self.keys
                .insert(args[0].clone(), Entry { value, ends: None });
        }
        let items = self.list(&args[0])?.ok_or(WRONG_TYPE)?;
        for item in &args[1..] {
            if first {
                items.push_front(item.clone());
            } else {
                items.push_back(item.clone());
            }
        }
        Ok(count(items.len()))
    }

    pub(super) fn pop(&mut self, args: &[Bytes], first: bool) -> Answer {
        let many = match args.get(1) {
            Some(many) => {
                let many = int(many).ok().and_then(|many| usize::try_from(many).ok());
                Some(many.ok_or("ERR value is out of range, must be positive")?)
            }
            None => None,
        };
        let Some(items) = self.list(&args[0])? else {
            return Ok(Value::Nil);
        };
        let mut pop = || {
            if first {
                items.pop_front()
            } else {
                items.pop_back()
            }
        };
        let popped = match many {
            None => pop().map_or(Value::Nil, bulk),
            Some(many) => Value::Array((0..many).map_while(|_| pop()).map(bulk).collect()),
        };
        self.tidy(&args[0]);
        Ok(popped)
    }

    pub(super) fn llen(&mut self, args: &[Bytes]) -> Answer {
        Ok(count(self.list(&args[0])?.map_or(0, |items| items.len())))
    }

    pub(super) fn lindex(&mut self, args: &[Bytes]) -> Answer {
        let Some(items) = self.list(&args[0])? else {
            return Ok(Value::Nil);
        };
        let at = at(int(&args[1])?, items.len());
        let item = at.and_then(|at| items.get(at)).cloned();
        Ok(item.map_or(Value::Nil, bulk))
    }

    pub(super) fn lset(&mut self, args: &[Bytes]) -> Answer {
        let Some(items) = self.list(&args[0])? else {
            return Err("ERR no such key".to_owned());
        };
        let at = at(int(&args[1])?, items.len());
        match at.and_then(|at| items.get_mut(at)) {
            Some(item) => {
                item.clone_from(&args[2]);
                Ok(Value::Okay)
            }
            None => Err("ERR index out of range".to_owned()),
        }
    }

    pub(super) fn lrange(&mut self, args: &[Bytes]) -> Answer {
        let (from, to) = (int(&args[1])?, int(&args[2])?);
        let Some(items) = self.list(&args[0])? else {
            return Ok(Value::Array(Vec::new()));
        };
        let found = range(from, to, items.len());
        Ok(Value::Array(
            items.range(found).cloned().map(bulk).collect(),
        ))
    }

    pub(super) fn lrem(&mut self, args: &[Bytes]) -> Answer {
        let many = int(&args[1])?;
        let Some(items) = self.list(&args[0])? else {
            return Ok(Value::Int(0));
        };
        let most = if many == 0 {
            u64::MAX
        } else {
            many.unsigned_abs()
        };
        let mut gone = 0;
        let mut stays = |item: &Bytes| {
            let goes = gone < most && *item == args[2];
            gone += u64::from(goes);
            !goes
        };
        if many < 0 {
            let mut kept: VecDeque<Bytes> = VecDeque::with_capacity(items.len());
            for item in items.drain(..).rev() {
                if stays(&item) {
                    kept.push_front(item);
                }
            }
            *items = kept;
        } else {
            items.retain(stays);
        }
        self.tidy(&args[0]);
        Ok(Value::Int(i64::try_from(gone).unwrap_or(i64::MAX)))
    }

    pub(super) fn linsert(&mut self, args: &[Bytes]) -> Answer {
        let behind = match args[1].to_ascii_uppercase().as_slice() {
            b"BEFORE" => 0,
            b"AFTER" => 1,
            _ => return Err(SYNTAX.to_owned()),
        };
        let Some(items) = self.list(&args[0])? else {
            return Ok(Value::Int(0));
        };
        match items.iter().position(|item| *item == args[2]) {
            Some(at) => {
                items.insert(at + behind, args[3].clone());
                Ok(count(items.len()))
            }
            None => Ok(Value::Int(-1)),
        }
    }
}

/// The place of an item, counted from the end if negative.
fn at(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if index < 0 { index + length } else { index }).ok()
}
