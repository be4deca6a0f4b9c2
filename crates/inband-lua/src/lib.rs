//! The Lua scripts of Redis (`EVAL`): Lua 5.1, sandboxed, bounded, and deterministic.
//!
//! Every replica executes a script by itself, so its effects, its reply and whether it ends by a limit must depend only
//! on the script, its arguments and the answers of the [`Host`]:
//!
//! * a script has neither time nor files, its random numbers start from the same seed, and it starts in a new Lua state;
//! * it may execute a number of *steps*: instructions, and what functions of the library do by length (`budget`);
//! * nothing that it allocates is freed, so that no garbage collector takes part in what it may allocate in total;
//! * values of a script, such as errors, are never turned into text by mlua, which would show addresses (`Calls`);
//! * objects are no keys of tables, because Lua would place them by address (`source`, `prelude.lua`);
//! * functions of `math` are those of the crate `libm`, patterns are matched by `pattern`.
//!
//! Replicas must have the same word size. `^` is the C library's `pow`: exact where the result is exact.

mod bits;
mod budget;
mod json;
mod msgpack;
mod numbers;
mod packing;
mod pattern;
mod reply;
mod source;
mod strings;

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;

use inband_resp::reply::Reply;
use mlua::{
    ChunkMode, Error, Function, HookTriggers, IntoLuaMulti, Lua, LuaOptions, MultiValue, StdLib,
    Table, Value, VmState,
};

use budget::{Budget, Over};

const PRELUDE: &str = include_str!("prelude.lua");
/// Keeps errors as they are, see [`Calls`].
const PROTECT: &str = "local thrown, pcall = ..., pcall
local function finish(ok, value)
    if not ok then thrown[1], value = value, nil end
    return ok, value
end
local function index(t, k) return t[k] end
return function(f, ...) return finish(pcall(f, ...)) end, function(t, k) return finish(pcall(index, t, k)) end";
/// The name of a script in error messages, as in Redis.
const CHUNK_NAME: &str = "@user_script";
/// How often the steps are counted.
const STEPS_PER_HOOK: u32 = 1000;
/// Steps of a command besides its length.
const STEPS_PER_COMMAND: usize = 100;
/// Bytes that count as a step.
const BYTES_PER_STEP: usize = 8;
/// Integers below this are written with all their digits.
const EXACT_MAX: u64 = 100_000_000_000_000_000;
/// With this many references, mlua's stack of them has its full size.
const REFERENCES: usize = 4_400;
/// What Lua says when an allocation is refused.
const NO_MEMORY: &str = "not enough memory";

/// What a script may use. Part of the meaning of a script: equal on all replicas.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub steps: u64,
    /// Total of all allocations.
    pub memory_bytes: usize,
    /// Length of the reply.
    pub reply_bytes: usize,
}

/// Executes the commands of a script.
pub trait Host {
    /// Execute a command; its name comes first. `None`: the script must end, and nothing that it did counts.
    fn call(&mut self, args: &[Vec<u8>]) -> Option<Reply>;
}

/// A script with its arguments.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    pub text: &'a [u8],
    pub keys: &'a [&'a [u8]],
    pub args: &'a [&'a [u8]],
}

/// How a script ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself, also with an error.
    Reply(Reply),
    /// By a limit: what it did must be undone.
    Undo(Reply),
}

/// The name of a script: the digest of its text.
pub fn sha1_hex(text: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text);
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// What the functions of this crate share while a script runs.
#[derive(Clone)]
struct Context {
    budget: Rc<Budget>,
}

impl Context {
    fn charge(&self, steps: usize) -> mlua::Result<()> {
        self.budget.charge(steps as u64).map_err(Error::external)
    }

    /// Charge for copying or reading this many bytes.
    fn charge_bytes(&self, bytes: usize) -> mlua::Result<()> {
        self.charge(1 + bytes / BYTES_PER_STEP)
    }
}

/// Calls functions of the script. An error of theirs is kept as the value that it is: mlua would turn it into text,
/// with the addresses of objects.
#[derive(Clone)]
struct Calls {
    call: Function,
    index: Function,
    /// The last error, in its first place.
    thrown: Table,
}

impl Calls {
    fn new(lua: &Lua) -> mlua::Result<Self> {
        let thrown = lua.create_table()?;
        let protect = lua.load(PROTECT).set_mode(ChunkMode::Text);
        let (call, index) = protect.set_name("=prelude").call(&thrown)?;
        Ok(Self {
            call,
            index,
            thrown,
        })
    }

    fn call(&self, function: &Function, mut args: MultiValue) -> mlua::Result<Value> {
        args.push_front(Value::Function(function.clone()));
        Self::result(self.call.call(args)?)
    }

    fn index(&self, table: &Table, key: Value) -> mlua::Result<Value> {
        Self::result(self.index.call((table, key))?)
    }

    fn result((is_ok, value): (bool, Value)) -> mlua::Result<Value> {
        match is_ok {
            true => Ok(value),
            false => Err(Error::external(Thrown)),
        }
    }
}

/// Stands for the error that is kept in [`Calls`].
#[derive(Debug)]
struct Thrown;

impl std::fmt::Display for Thrown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an error of the script")
    }
}

impl std::error::Error for Thrown {}

/// mlua keeps references to values on a stack of its own. If there is no memory when that grows, it ends the process. So
/// it grows to its full size before memory is limited.
fn reserve_references(lua: &Lua) {
    let held: Vec<Table> = (0..REFERENCES).map(|_| lua.globals()).collect();
    drop(held);
}

/// An error at the line of the script that has called this function.
fn fail(lua: &Lua, why: impl std::fmt::Display) -> Error {
    match line(lua) {
        Some(line) => Error::runtime(format!("user_script:{line}: {why}")),
        None => Error::runtime(why),
    }
}

/// The line that the script executes.
fn line(lua: &Lua) -> Option<usize> {
    let mut level = 0;
    loop {
        let found = lua.inspect_stack(level, |frame| {
            let is_script = frame.source().source.as_deref() == Some(CHUNK_NAME);
            frame.current_line().filter(|_| is_script)
        })?;
        if found.is_some() {
            return found;
        }
        level += 1;
    }
}

/// The text of an error of this crate or of Lua.
fn text_of(error: &Error) -> Cow<'_, str> {
    match error {
        Error::CallbackError { cause, .. } => text_of(cause),
        Error::WithContext { cause, .. } => text_of(cause),
        Error::RuntimeError(text) => {
            let why = text.split_once("\nstack traceback");
            Cow::Borrowed(why.map_or(&text[..], |(why, _)| why))
        }
        Error::BadArgument { to, pos, cause, .. } => {
            let to = to.as_deref().unwrap_or("?");
            Cow::Owned(format!(
                "bad argument #{pos} to '{to}' ({})",
                text_of(cause)
            ))
        }
        other => Cow::Owned(other.to_string()),
    }
}

fn is_no_memory(error: &Error) -> bool {
    match error {
        Error::MemoryError(_) => true,
        Error::CallbackError { cause, .. } | Error::WithContext { cause, .. } => {
            is_no_memory(cause)
        }
        _ => false,
    }
}

/// Whether a script compiles; the error is the reply to the client.
pub fn compile(text: &[u8], limits: &Limits) -> Result<(), Reply> {
    let lua = new_state().map_err(|error| broken(&error))?;
    bound_memory(&lua, limits).map_err(|error| broken(&error))?;
    load(&lua, text).map(|_| ())
}

/// Run a script.
pub fn run(script: &Script<'_>, limits: &Limits, host: &mut dyn Host) -> Ended {
    run_counted(script, limits, host).0
}

/// Run a script. Also returns the steps that it has used.
pub fn run_counted(script: &Script<'_>, limits: &Limits, host: &mut dyn Host) -> (Ended, u64) {
    let context = Context {
        budget: Rc::new(Budget::new(limits.steps)),
    };
    let ended = match run_in(script, limits, host, &context) {
        Ok(ended) => ended,
        Err(error) => {
            if is_no_memory(&error) {
                context.budget.end(Over::Memory);
            }
            match context.budget.is_over() {
                Some(over) => ended_by(over, limits),
                None => Ended::Undo(broken(&error)),
            }
        }
    };
    (ended, limits.steps - context.budget.left())
}

fn broken(error: &Error) -> Reply {
    Reply::error(format!("ERR script: {}", text_of(error)))
}

fn ended_by(over: Over, limits: &Limits) -> Ended {
    let (what, limit) = match over {
        Over::Steps => ("steps", limits.steps),
        Over::Memory => ("bytes of memory", limits.memory_bytes as u64),
        Over::Reply => ("bytes of reply", limits.reply_bytes as u64),
        Over::Host => return Ended::Undo(Reply::error("ERR the script was ended")),
    };
    Ended::Undo(Reply::error(format!(
        "ERR script is over the limit of {limit} {what}; nothing that it did took effect"
    )))
}

fn new_state() -> mlua::Result<Lua> {
    let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
    let lua = Lua::new_with(libraries, LuaOptions::new())?;
    lua.gc_stop();
    Ok(lua)
}

/// From here on, allocations count.
fn bound_memory(lua: &Lua, limits: &Limits) -> mlua::Result<()> {
    lua.set_memory_limit(lua.used_memory() + limits.memory_bytes)?;
    Ok(())
}

/// The prelude as byte code: compiling it takes several times as long as running a short script.
fn prelude_code() -> mlua::Result<&'static [u8]> {
    static CODE: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(code) = CODE.get() {
        return Ok(code);
    }
    let lua = new_state()?;
    let prelude = lua.load(PRELUDE).set_mode(ChunkMode::Text);
    let code = prelude.set_name("=prelude").into_function()?.dump(false);
    Ok(CODE.get_or_init(|| code))
}

fn load(lua: &Lua, text: &[u8]) -> Result<Function, Reply> {
    let compile_error =
        |why: &str| Reply::error(format!("ERR Error compiling script (new function): {why}"));
    let prepared = source::prepare(text)
        .map_err(|source::Reserved| compile_error("the name __inband_key is reserved"))?;
    let chunk = lua.load(prepared).set_mode(ChunkMode::Text);
    let chunk = chunk.set_name(CHUNK_NAME).into_function();
    chunk.map_err(|error| match &error {
        Error::SyntaxError { message, .. } => compile_error(message),
        other => compile_error(&text_of(other)),
    })
}

fn run_in(
    script: &Script<'_>,
    limits: &Limits,
    host: &mut dyn Host,
    context: &Context,
) -> mlua::Result<Ended> {
    let lua = new_state()?;
    reserve_references(&lua);
    let native = native(&lua, context)?;
    let format: Function = lua.globals().get::<Table>("string")?.get("format")?;
    let host = RefCell::new(host);
    let ask = |args: &MultiValue| {
        // Not borrowed twice: a command calls no script.
        call(context, &format, &mut **host.borrow_mut(), args)
    };
    lua.scope(|scope| {
        let call = scope.create_function(|lua, args: MultiValue| match ask(&args)? {
            Reply::Error(text) => Err(Error::external(CommandError(text.into_owned()))),
            reply => reply::to_value(lua, reply),
        })?;
        native.set("call", call)?;
        let pcall =
            scope.create_function(|lua, args: MultiValue| reply::to_value(lua, ask(&args)?))?;
        native.set("pcall", pcall)?;
        let prelude = lua.load(prelude_code()?).set_mode(ChunkMode::Binary);
        let main: Function = prelude.set_name("=prelude").call(&native)?;
        for (name, values) in [("KEYS", script.keys), ("ARGV", script.args)] {
            let table = lua.create_table_with_capacity(values.len(), 0)?;
            for value in values {
                table.raw_push(lua.create_string(value)?)?;
            }
            lua.globals().raw_set(name, table)?;
        }
        bound_memory(&lua, limits)?;
        let chunk = match load(&lua, script.text) {
            Ok(chunk) => chunk,
            Err(reply) => return Ok(Ended::Reply(reply)),
        };
        let budget = context.budget.clone();
        let every = HookTriggers::new().every_nth_instruction(STEPS_PER_HOOK);
        lua.set_hook(every, move |_, _| {
            let charged = budget.charge(u64::from(STEPS_PER_HOOK));
            charged.map_err(Error::external)?;
            Ok(VmState::Continue)
        })?;
        let result = main.call::<(bool, Value)>(chunk);
        lua.remove_hook();
        let (is_ok, value) = result?;
        if !is_ok {
            note_no_memory(context, &value);
        }
        if let Some(over) = context.budget.is_over() {
            return Ok(ended_by(over, limits));
        }
        if is_ok {
            let mut room = limits.reply_bytes;
            let reply = reply::of_value(&value, context, &mut room, 0)?;
            return Ok(Ended::Reply(reply));
        }
        Ok(Ended::Reply(error_reply(script, &value)))
    })
}

/// Lua says with a string that there is no memory, which a script could say as well: it ends in the same way.
fn note_no_memory(context: &Context, value: &Value) {
    let is_no_memory = match value {
        Value::Error(error) => is_no_memory(error),
        Value::String(text) => text.as_bytes().ends_with(NO_MEMORY.as_bytes()),
        _ => false,
    };
    if is_no_memory {
        context.budget.end(Over::Memory);
    }
}

/// The reply to a script that has ended with an error.
fn error_reply(script: &Script<'_>, value: &Value) -> Reply {
    let (text, line) = match value {
        Value::Table(table) => (
            table
                .raw_get::<mlua::String>("err")
                .ok()
                .map(|t| reply::text(&t)),
            table.raw_get::<Option<usize>>("line").ok().flatten(),
        ),
        Value::String(text) => (Some(format!("ERR {}", reply::text(text))), None),
        Value::Error(error) => (Some(format!("ERR {}", text_of(error))), None),
        _ => (None, None),
    };
    let text = text.unwrap_or_else(|| "ERR unknown error".into());
    // An error of a library function that the prelude wraps.
    let text = match (text.strip_prefix("ERR prelude:"), line) {
        (Some(rest), Some(line)) => {
            let why = rest.split_once(": ").map_or(rest, |(_, why)| why);
            format!("ERR user_script:{line}: {why}")
        }
        _ => text,
    };
    let sha1 = sha1_hex(script.text);
    let place = line.map_or(String::new(), |line| format!(", on {CHUNK_NAME}:{line}."));
    Reply::error(format!("{text} script: {sha1}{place}"))
}

/// An error of a command. Scripts see its text.
#[derive(Debug)]
struct CommandError(String);

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CommandError {}

fn command_error(error: &Error) -> Option<&CommandError> {
    match error {
        Error::CallbackError { cause, .. } => command_error(cause),
        Error::ExternalError(error) => error.downcast_ref(),
        _ => None,
    }
}

fn is_thrown(error: &Error) -> bool {
    match error {
        Error::CallbackError { cause, .. } => is_thrown(cause),
        Error::ExternalError(error) => error.is::<Thrown>(),
        _ => false,
    }
}

/// `redis.pcall`.
fn call(
    context: &Context,
    format: &Function,
    host: &mut dyn Host,
    args: &MultiValue,
) -> mlua::Result<Reply> {
    let error = |text: &'static str| Ok(Reply::error(text));
    if args.is_empty() {
        return error("ERR Please specify at least one argument for this redis lib call");
    }
    let mut given = Vec::with_capacity(args.len());
    for arg in args {
        given.push(match arg {
            Value::String(text) => text.as_bytes().to_vec(),
            Value::Integer(number) if number.unsigned_abs() < EXACT_MAX => {
                number.to_string().into_bytes()
            }
            Value::Integer(_) | Value::Number(_) => {
                let text: mlua::String = format.call(("%.17g", json::number_of(arg)))?;
                text.as_bytes().to_vec()
            }
            _ => return error("ERR Lua redis lib command arguments must be strings or integers"),
        });
    }
    context.charge(STEPS_PER_COMMAND)?;
    context.charge_bytes(given.iter().map(Vec::len).sum())?;
    let Some(reply) = host.call(&given) else {
        return Err(Error::external(context.budget.end(Over::Host)));
    };
    context.charge_bytes(reply.len_bytes())?;
    Ok(reply)
}

/// The functions that the prelude gives to scripts.
fn native(lua: &Lua, context: &Context) -> mlua::Result<Table> {
    let native = lua.create_table()?;
    let own = context.clone();
    let charge = lua.create_function(move |_, steps: f64| own.charge(steps.max(0.0) as usize))?;
    native.set("charge", charge)?;
    let calls = Calls::new(lua)?;
    let (own, thrown) = (context.clone(), calls.thrown.clone());
    let caught = lua.create_function(move |lua, error: Value| {
        let error = match &error {
            Value::Error(passed) if is_thrown(passed) => thrown.raw_get(1)?,
            _ => error,
        };
        note_no_memory(&own, &error);
        if let Some(over) = own.budget.is_over() {
            return Err(Error::external(over));
        }
        match &error {
            Value::Error(error) if command_error(error).is_some() => {
                let text = command_error(error).map_or("", |error| &error.0);
                reply::table_of(lua, "err", text.as_bytes())
            }
            Value::Error(error) => lua.create_string(&*text_of(error)).map(Value::String),
            _ => Ok(error),
        }
    })?;
    native.set("caught", caught)?;
    native.set("position", lua.create_function(|lua, ()| Ok(line(lua)))?)?;
    reply::add(lua, context, &native)?;
    native.set("string", strings::library(lua, context, &calls)?)?;
    let tostring_of = lua.create_function(|_, value: Value| match value {
        Value::Table(table) => match table.metatable() {
            Some(meta) => meta.raw_get::<Value>("__tostring"),
            None => Ok(Value::Nil),
        },
        _ => Ok(Value::Nil),
    })?;
    native.set("tostring_of", tostring_of)?;
    native.set("math", numbers::library(lua)?)?;
    native.set("bit", bits::library(lua)?)?;
    native.set("cjson", json::library(lua, context)?)?;
    native.set("cmsgpack", msgpack::library(lua, context)?)?;
    native.set("struct", packing::library(lua, context)?)?;
    Ok(native)
}

/// One Lua value as a list of results.
fn results(lua: &Lua, values: impl IntoLuaMulti) -> mlua::Result<MultiValue> {
    values.into_lua_multi(lua)
}
