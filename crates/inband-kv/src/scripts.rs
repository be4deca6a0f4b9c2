//! The Lua scripts with which clients release and extend their locks. There is no Lua interpreter: a known script is
//! executed as an equivalent command.
//!
//! `EVAL` recognises the scripts by their tokens, whatever their indentation. A digest identifies one exact text, so
//! `EVALSHA` and `SCRIPT` know only the texts listed here.

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use crate::command::{Command, Extend};
use crate::parse::integer;
use crate::table::CommandId;

/// What a script does with a key that holds its first argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Delete,
    Expire(Extend),
    /// redis-py's: selected by the third argument.
    ExtendOrReplace,
}

struct Script {
    sha1: &'static str,
    does: Does,
    arguments: usize,
    text: &'static str,
}

static SCRIPTS: [Script; 5] = [
    // redis-py, Lock.release
    Script {
        sha1: "c3f8721cbb97f72bc19e972846bd7aaf91901658",
        does: Does::Delete,
        arguments: 1,
        text: "
        local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then
            return 0
        end
        redis.call('del', KEYS[1])
        return 1
    ",
    },
    // redis-py, Lock.extend
    Script {
        sha1: "a4e8783852e6b949f9ef3a97212805108459a890",
        does: Does::ExtendOrReplace,
        arguments: 3,
        text: "
        local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then
            return 0
        end
        local expiration = redis.call('pttl', KEYS[1])
        if not expiration then
            expiration = 0
        end
        if expiration < 0 then
            return 0
        end

        local newttl = ARGV[2]
        if ARGV[3] == \"0\" then
            newttl = ARGV[2] + expiration
        end
        redis.call('pexpire', KEYS[1], newttl)
        return 1
    ",
    },
    // redis-py, Lock.reacquire
    Script {
        sha1: "1cac51482acf5858da00f6d685d68f886cd6b6b2",
        does: Does::Expire(Extend::Set),
        arguments: 2,
        text: "
        local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then
            return 0
        end
        redis.call('pexpire', KEYS[1], ARGV[2])
        return 1
    ",
    },
    // From the Redis documentation; Redlock clients use it with varying indentation.
    Script {
        sha1: "647c65a442733a1aa440f99908d249d13b4d6c4a",
        does: Does::Delete,
        arguments: 1,
        text: "if redis.call(\"get\",KEYS[1]) == ARGV[1] then
    return redis.call(\"del\",KEYS[1])
else
    return 0
end",
    },
    Script {
        sha1: "1bfbb99810d66d9ea59b16336fdf07c12b8be9fc",
        does: Does::Expire(Extend::Set),
        arguments: 2,
        text: "if redis.call(\"get\",KEYS[1]) == ARGV[1] then
    return redis.call(\"pexpire\",KEYS[1],ARGV[2])
else
    return 0
end",
    },
];

/// Longest script that is compared token by token.
const TEXT_LEN_BYTES_MAX: usize = 4096;

/// Returns a normalised script: lower case, one kind of quotes, no spaces or semicolons.
fn words(text: &[u8]) -> Vec<u8> {
    let bytes = text.iter().filter(|byte| !byte.is_ascii_whitespace());
    let bytes = bytes.filter(|byte| **byte != b';').map(|byte| match byte {
        b'\'' => b'"',
        other => other.to_ascii_lowercase(),
    });
    bytes.collect()
}

fn of_text(text: &[u8]) -> Option<&'static Script> {
    if text.len() > TEXT_LEN_BYTES_MAX {
        return None;
    }
    let words_of_it = words(text);
    SCRIPTS
        .iter()
        .find(|script| words(script.text.as_bytes()) == words_of_it)
}

fn of_sha1(sha1: &[u8]) -> Option<&'static Script> {
    SCRIPTS
        .iter()
        .find(|script| sha1.eq_ignore_ascii_case(script.sha1.as_bytes()))
}

fn unsupported() -> Reply {
    Reply::error(
        "ERR Lua scripts are not supported, except those with which clients release and extend locks; use MULTI with \
         WATCH",
    )
}

/// `EVAL` and `EVALSHA`.
pub fn parse(id: CommandId, args: Args<'_>) -> Result<Command<'_>, Reply> {
    let script = match id {
        CommandId::EvalSha => of_sha1(args.get(1))
            .ok_or_else(|| Reply::error("NOSCRIPT No matching script. Please use EVAL."))?,
        _ => of_text(args.get(1)).ok_or_else(unsupported)?,
    };
    let keys = integer(args.get(2))?;
    if keys != 1 {
        return Err(Reply::error(format!(
            "ERR this script takes 1 key, and {keys} were given"
        )));
    }
    let (needed, given) = (script.arguments, args.len().saturating_sub(4));
    if args.len() < 4 || given < needed {
        let arguments = if needed == 1 { "argument" } else { "arguments" };
        return Err(Reply::error(format!(
            "ERR this script takes {needed} {arguments} after its key, and {given} were given"
        )));
    }
    let (key, value) = (args.get(3), args.get(4));
    let extend = match script.does {
        Does::Delete => return Ok(Command::CompareDelete(key, value)),
        Does::Expire(extend) => extend,
        Does::ExtendOrReplace if args.get(6) == b"0" => Extend::AddIfExpiring,
        Does::ExtendOrReplace => Extend::SetIfExpiring,
    };
    Ok(Command::CompareExpire {
        key,
        value,
        ms: integer(args.get(5))?,
        extend,
    })
}

/// `SCRIPT LOAD`, `EXISTS` and `FLUSH`.
pub fn script_command(args: Args<'_>) -> Reply {
    let is = |word: &str| args.get(1).eq_ignore_ascii_case(word.as_bytes());
    if is("LOAD") && args.len() == 3 {
        let script = SCRIPTS
            .iter()
            .find(|script| script.text.as_bytes() == args.get(2));
        return script.map_or_else(unsupported, |script| Reply::bulk(script.sha1));
    }
    if is("EXISTS") && args.len() > 2 {
        let known = args.from(2).map(|sha1| of_sha1(sha1).is_some());
        return Reply::Array(known.map(|known| Reply::Integer(known.into())).collect());
    }
    if is("FLUSH") && args.len() <= 3 {
        return Reply::Ok;
    }
    crate::parse::unknown_subcommand("SCRIPT", args.get(1))
}
