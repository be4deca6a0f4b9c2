use super::*;

fn error_of(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let bytes = words.concat();
    let mut at = 0;
    let ranges: Vec<_> = words
        .iter()
        .map(|w| {
            at += w.len();
            (at - w.len(), at)
        })
        .collect();
    match parse(Args::new(bytes.as_bytes(), &ranges)) {
        Err(Reply::Error(text)) => text.into_owned(),
        Ok(request) => format!("{request:?}"),
        Err(other) => format!("{other:?}"),
    }
}

#[test]
fn errors_are_worded_as_in_redis() {
    let overflow = "9223372036854775807";
    let cases = [
        (
            "NOSUCH",
            "ERR unknown command 'NOSUCH', with args beginning with: ",
        ),
        (
            "foo bar b",
            "ERR unknown command 'foo', with args beginning with: 'bar' 'b' ",
        ),
        ("get", "ERR wrong number of arguments for 'get' command"),
        ("GET a b", "ERR wrong number of arguments for 'get' command"),
        (
            "MSET a 1 b",
            "ERR wrong number of arguments for 'mset' command",
        ),
        ("SET a", "ERR wrong number of arguments for 'set' command"),
        ("SET a b c", "ERR syntax error"),
        ("SET a b NX XX", "ERR syntax error"),
        ("SET a b EX", "ERR syntax error"),
        ("SET a b IFEQ", "ERR syntax error"),
        ("SET a b IFEQ c NX", "ERR syntax error"),
        ("SET a b XX IFEQ c", "ERR syntax error"),
        ("DELEX a IFEQ", "ERR syntax error"),
        ("DELEX a WHEN b", "ERR syntax error"),
        ("SET a b EX 1 PX 1", "ERR syntax error"),
        ("SET a b EX 1 KEEPTTL EX 1", "ERR syntax error"),
        (
            "SET a b EX 10 EX 0",
            "ERR invalid expire time in 'set' command",
        ),
        ("SET a b EX 1 KEEPTTL", "ERR syntax error"),
        ("SET a b KEEPTTL EX 1", "ERR syntax error"),
        ("SET a b EX x NX XX", "ERR syntax error"),
        ("SET a b EX x", NOT_AN_INTEGER),
        ("SET a b EX 0", "ERR invalid expire time in 'set' command"),
        ("SET a b PX -1", "ERR invalid expire time in 'set' command"),
        ("SET a b EXAT 0", "ERR invalid expire time in 'set' command"),
        ("SETEX a 0 b", "ERR invalid expire time in 'setex' command"),
        ("SETEX a 1.5 b", NOT_AN_INTEGER),
        (
            "PSETEX a 0 b",
            "ERR invalid expire time in 'psetex' command",
        ),
        ("INCRBY a +1", NOT_AN_INTEGER),
        ("INCRBY a 01", NOT_AN_INTEGER),
        ("INCRBY a 9223372036854775808", NOT_AN_INTEGER),
        (
            "DECRBY a -9223372036854775808",
            "ERR decrement would overflow",
        ),
        ("EXPIRE a x", NOT_AN_INTEGER),
        ("EXPIRE a 1 YY", "ERR Unsupported option YY"),
        (
            "EXPIRE a 1 NX GT",
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ),
        (
            "EXPIRE a 1 GT LT",
            "ERR GT and LT options at the same time are not compatible",
        ),
        ("FLUSHALL NOW", "ERR syntax error"),
        ("FLUSHDB ASYNC SYNC", "ERR syntax error"),
        (
            "INBAND.SESSION x",
            "ERR unknown subcommand 'x'. Try INBAND.SESSION HELP.",
        ),
        ("INBAND.SESSION a 1", NOT_AN_INTEGER),
        ("GETEX a EX 0", "ERR invalid expire time in 'getex' command"),
        ("GETEX a EX x", NOT_AN_INTEGER),
        ("GETEX a PERSIST EX 1", "ERR syntax error"),
        ("GETEX a KEEPTTL", "ERR syntax error"),
        ("SETRANGE a -1 b", "ERR offset is out of range"),
        ("SETRANGE a x b", NOT_AN_INTEGER),
        ("GETRANGE a x 1", NOT_AN_INTEGER),
        ("INCRBYFLOAT a x", float::NOT_A_FLOAT),
        ("INCRBYFLOAT a 0x10", float::NOT_A_FLOAT),
        (
            "MSETNX a 1 b",
            "ERR wrong number of arguments for 'msetnx' command",
        ),
        ("EVAL text x", NOT_AN_INTEGER),
        ("EVAL text -1", "ERR Number of keys can't be negative"),
        (
            "EVAL text 2 a",
            "ERR Number of keys can't be greater than number of args",
        ),
        (
            "SCRIPT FLUSH NOW",
            "ERR SCRIPT FLUSH only support SYNC|ASYNC option",
        ),
        (
            "SCRIPT LOAD retrn",
            "ERR Error compiling script (new function): user_script:1: '=' expected near '<eof>'",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(error_of(line), expected, "{line}");
    }
    let invalid = "ERR invalid expire time in 'expire' command";
    assert_eq!(error_of(&format!("EXPIRE a {overflow}")), invalid);
    for command in ["expireat", "pexpireat", "pexpire"] {
        let invalid = format!("ERR invalid expire time in '{command}' command");
        assert_eq!(error_of(&format!("{command} a {overflow}")), invalid);
        assert_eq!(error_of(&format!("{command} a -{overflow}")), invalid);
    }
    let invalid = "ERR invalid expire time in 'set' command";
    assert_eq!(error_of(&format!("SET a b EX {overflow}")), invalid);
    assert!(error_of("SET a b EX 10 EX 20").contains("InMs(20000)"));
    assert!(error_of("INBAND.SESSION 0 1").contains("start at 1"));
}

#[test]
fn unknown_command_echo_is_bounded() {
    let long = "x".repeat(500);
    let text = error_of(&format!("{long} {long} {long}"));
    assert!(text.len() < 350, "{}", text.len());
}

#[test]
fn strict_integers() {
    for (text, expected) in [
        ("0", Some(0)),
        ("-1", Some(-1)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("", None),
        ("-", None),
        ("-0", None),
        ("00", None),
        (" 1", None),
        ("1 ", None),
        ("1a", None),
    ] {
        assert_eq!(strict_integer(text.as_bytes()), expected, "{text}");
    }
}
