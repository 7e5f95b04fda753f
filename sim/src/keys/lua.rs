//! The interpreter of scripts: Lua 5.1, with Redis' functions, and its rules for what becomes of a value.

use std::{cell::RefCell, collections::HashMap, sync::OnceLock};

use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value as LuaValue};
use redis::Value;

use super::{Answer, Bytes, Keyspace};

/// The functions that a script finds beside Lua's own. `raw` carries a command out, and says whether that failed.
const REDIS: &str = "
local raw, error, pcall, tostring, type, find = raw, error, pcall, tostring, type, string.find
rawset(_G, 'raw', nil)
redis = {}
function redis.call(...)
  local reply, failed = raw(...)
  if failed then
    error(reply, 0)
  end
  return reply
end
function redis.pcall(...)
  local reply = raw(...)
  return reply
end
function redis.error_reply(words)
  words = words:gsub('^%-', '')
  return { err = find(words, ' ', 1, true) and words or 'ERR ' .. words }
end
function redis.status_reply(words)
  return { ok = words }
end
-- All rights are there. Faults of the simulation take them away for one command.
function redis.acl_check_cmd()
  return true
end
function redis.replicate_commands()
  return true
end
function redis.log() end
redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3
for _, name in ipairs({ 'dofile', 'loadfile', 'print', 'require', 'module', 'newproxy' }) do
  rawset(_G, name, nil)
end
setmetatable(_G, {
  __index = function(_, name)
    error('Script attempted to access nonexistent global variable \\'' .. tostring(name) .. '\\'', 2)
  end,
  __newindex = function(_, name)
    error('Attempt to modify a readonly table script: ' .. tostring(name), 2)
  end,
})
return function(script)
  return pcall(script)
end
";

/// The replacements in the text of each script, before it is run: a mutant.
static REPLACED: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// The scripts of this process are broken on purpose: each of these texts stands there as another.
pub fn replace(texts: Vec<(String, String)>) {
    let _ = REPLACED.set(texts);
}

struct Interpreter {
    lua: Lua,
    globals: Table,
    protected: Function,
    /// By the address of its text, which is static.
    compiled: RefCell<HashMap<usize, Function>>,
}

thread_local! {
    static INTERPRETER: Interpreter = Interpreter::new().expect("the frame of scripts is Lua");
    /// The keys that the script of this thread is about, while one runs.
    static KEYS: RefCell<Keyspace> = RefCell::default();
}

/// Runs a script on these keys.
pub(super) fn run(
    keys: &mut Keyspace,
    script: &'static str,
    names: &[Bytes],
    args: &[Bytes],
) -> Answer {
    INTERPRETER.with(|interpreter| {
        KEYS.with_borrow_mut(|current| std::mem::swap(current, keys));
        let answer = interpreter.run(script, names, args);
        KEYS.with_borrow_mut(|current| std::mem::swap(current, keys));
        answer.unwrap_or_else(|error| Err(format!("ERR {error}")))
    })
}

impl Interpreter {
    fn new() -> mlua::Result<Interpreter> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        let globals = lua.globals();
        let raw = lua.create_function(|lua, args: MultiValue| {
            let answer = match texts(lua, &args) {
                Some(args) => KEYS.with_borrow_mut(|keys| keys.called(&args)),
                None => Err(
                    "ERR Lua redis lib command arguments must be strings or integers".to_owned(),
                ),
            };
            Ok(match answer {
                Ok(value) => (to_lua(lua, &value)?, false),
                Err(error) => (LuaValue::Table(with(lua, "err", &error)?), true),
            })
        })?;
        globals.raw_set("raw", raw)?;
        let protected = lua.load(REDIS).set_name("=redis").eval()?;
        Ok(Interpreter {
            lua,
            globals,
            protected,
            compiled: RefCell::default(),
        })
    }

    fn run(&self, script: &'static str, names: &[Bytes], args: &[Bytes]) -> mlua::Result<Answer> {
        let function = self.function(script)?;
        self.globals.raw_set("KEYS", self.strings(names)?)?;
        self.globals.raw_set("ARGV", self.strings(args)?)?;
        let (done, reply): (bool, LuaValue) = self.protected.call(function)?;
        Ok(if done {
            from_lua(reply)
        } else {
            match reply {
                LuaValue::Table(error) => Err(error.raw_get("err")?),
                other => Err(format!("ERR {}", other.to_string()?)),
            }
        })
    }

    fn strings(&self, of: &[Bytes]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(of.len(), 0)?;
        for (at, text) in of.iter().enumerate() {
            table.raw_set(at + 1, self.lua.create_string(text)?)?;
        }
        Ok(table)
    }

    fn function(&self, script: &'static str) -> mlua::Result<Function> {
        let at = script.as_ptr().addr();
        if let Some(function) = self.compiled.borrow().get(&at) {
            return Ok(function.clone());
        }
        let mut text = script.to_owned();
        for (before, after) in REPLACED.get().into_iter().flatten() {
            text = text.replace(before, after);
        }
        let function = self
            .lua
            .load(text)
            .set_name("@user_script")
            .into_function()?;
        self.compiled.borrow_mut().insert(at, function.clone());
        Ok(function)
    }
}

/// The arguments of a command, if each is a text or a number.
fn texts(lua: &Lua, args: &MultiValue) -> Option<Vec<Bytes>> {
    args.iter()
        .map(|arg| match arg {
            LuaValue::String(text) => Some(text.as_bytes().to_vec()),
            LuaValue::Integer(number) => Some(number.to_string().into_bytes()),
            LuaValue::Number(number) => Some(number_in_words(lua, *number)),
            _ => None,
        })
        .collect()
}

/// A number as an argument: with all its digits.
#[allow(
    clippy::cast_possible_truncation,
    reason = "only where nothing is lost"
)]
fn number_in_words(lua: &Lua, number: f64) -> Bytes {
    if number.fract() == 0.0 && number.abs() < 9e15 {
        return (number as i64).to_string().into_bytes();
    }
    let words = lua.load("return string.format('%.17g', ...)");
    let words = words.call::<String>(number);
    words.unwrap_or_default().into_bytes()
}

fn with(lua: &Lua, field: &str, words: &str) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set(field, words)?;
    Ok(table)
}

/// The reply to a command, as a script sees it. Nothing is `false`.
#[allow(
    clippy::cast_precision_loss,
    reason = "Redis' own: Lua's numbers are such"
)]
fn to_lua(lua: &Lua, value: &Value) -> mlua::Result<LuaValue> {
    Ok(match value {
        Value::Int(number) => LuaValue::Number(*number as f64),
        Value::BulkString(text) => LuaValue::String(lua.create_string(text)?),
        Value::Okay => LuaValue::Table(with(lua, "ok", "OK")?),
        Value::SimpleString(words) => LuaValue::Table(with(lua, "ok", words)?),
        Value::Array(values) => {
            let table = lua.create_table_with_capacity(values.len(), 0)?;
            for (at, value) in values.iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, value)?)?;
            }
            LuaValue::Table(table)
        }
        _ => LuaValue::Boolean(false),
    })
}

/// 2^63.
const TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;

/// The answer made of what a script returns. A number loses what stands behind the point; a table ends before its first `nil`.
#[allow(clippy::cast_possible_truncation, reason = "Redis' own rule")]
fn from_lua(value: LuaValue) -> Answer {
    Ok(match value {
        LuaValue::Integer(number) => Value::Int(number),
        // A number too large for an integer becomes the least, as on servers.
        LuaValue::Number(number) if !(-TOO_LARGE..TOO_LARGE).contains(&number) => {
            Value::Int(i64::MIN)
        }
        LuaValue::Number(number) => Value::Int(number as i64),
        LuaValue::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        LuaValue::Boolean(true) => Value::Int(1),
        LuaValue::Table(table) => {
            let words = |field| match table.raw_get(field) {
                Ok(LuaValue::String(words)) => Some(words.to_string_lossy()),
                _ => None,
            };
            if let Some(error) = words("err") {
                return Err(error);
            }
            if let Some(status) = words("ok") {
                return Ok(match status.as_str() {
                    "OK" => Value::Okay,
                    _ => Value::SimpleString(status),
                });
            }
            let mut values = Vec::new();
            for at in 1.. {
                let item: LuaValue = table.raw_get(at).unwrap_or(LuaValue::Nil);
                if item.is_nil() {
                    break;
                }
                // An error within an array stays where it is.
                values.push(match from_lua(item) {
                    Ok(value) => value,
                    Err(error) => Value::SimpleString(format!("-{error}")),
                });
            }
            Value::Array(values)
        }
        _ => Value::Nil,
    })
}
