use proptest::prelude::*;

use super::*;

fn whole(text: &[u8]) -> Request<'_> {
    match parse(text) {
        Parsed::Whole {
            len_bytes,
            skip_bytes: 0,
            request,
        } if len_bytes == text.len() => request,
        other => panic!("{}: {other:?}", text.escape_ascii()),
    }
}

#[test]
fn requests_are_what_they_say() {
    let keys = vec![&b"a"[..], b"b"];
    let get = Request::Get {
        with_cas: true,
        keys,
    };
    assert_eq!(whole(b"gets a  b \r\n"), get);
    let store = |is_quiet| Request::Store {
        mode: Mode::Cas,
        key: b"k",
        flags: 7,
        exptime_s: -3,
        cas: 9,
        value: b"a\r\nb",
        is_quiet,
    };
    assert_eq!(whole(b"cas k 7 -3 4 9\r\na\r\nb\r\n"), store(false));
    assert_eq!(whole(b"cas k 7 -3 4 9 noreply\na\r\nb\r\n"), store(true));
    assert_eq!(parse(b"cas k 7 -3 4 9\r\na\r\nb\r"), Parsed::Incomplete);
    assert_eq!(whole(b"set k 0 0 1\r\nabc"), Request::Say(BAD_CHUNK));
    let long = [&b"get "[..], &[b'k'; 251], b"\r\n"].concat();
    assert_eq!(whole(&long), Request::Say(BAD_FORMAT));
    let many = format!("get {}\r\n", ["key"; 500].join(" "));
    let Request::Get { keys, .. } = whole(many.as_bytes()) else {
        panic!("it is a get");
    };
    assert_eq!(keys.len(), 500);
    assert_eq!(parse(&[b'x'; 2049]), Parsed::Hopeless);
    assert_eq!(parse(b"GET / HTTP/1.1\r\n"), Parsed::Hopeless);
    let skipped = Parsed::Whole {
        len_bytes: 21,
        skip_bytes: 2_000_002,
        request: Request::Say(TOO_LARGE),
    };
    assert_eq!(parse(b"set k 0 0 2000000   \nx"), skipped);
}

#[test]
fn datagrams_of_a_reply_are_numbered() {
    let reply = vec![b'x'; 3000];
    let parts = udp::datagrams(7, &reply);
    assert_eq!(parts.len(), 3);
    assert_eq!(parts[1][..8], [0, 7, 0, 1, 0, 3, 0, 0]);
    assert!(udp::parse(&parts[0]).is_none() && udp::parse(b"short").is_none());
    assert_eq!(
        udp::parse(&[0, 1, 0, 0, 0, 1, 0, 0, b'x']).expect("one").1,
        b"x"
    );
}

proptest! {
    /// Bytes that are not a request are refused. A request is parsed the same whatever follows it, and any shorter
    /// prefix is incomplete.
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(
        prop_oneof![
            Just(b' '), Just(b'\r'), Just(b'\n'), Just(b'0'), Just(b'9'), Just(b'm'), Just(b'g'),
            Just(b's'), Just(b'e'), Just(b't'), Just(b'b'), Just(b'='), Just(b'-'), any::<u8>()
        ], 0..200), command in 0..14_usize)
    {
        let commands: [&[u8]; 14] = [b"", b"get ", b"gat ", b"set ", b"cas ", b"mg ", b"ms ", b"md ",
            b"ma ", b"me ", b"incr ", b"delete ", b"flush_all ", b"touch "];
        let buffer = [commands[command], &bytes].concat();
        if let Parsed::Whole { len_bytes, request, skip_bytes } = parse(&buffer) {
            prop_assert!((1..=buffer.len()).contains(&len_bytes));
            for less in 0..len_bytes {
                prop_assert_eq!(parse(&buffer[..less]), Parsed::Incomplete);
            }
            let alone = Parsed::Whole { len_bytes, request, skip_bytes };
            prop_assert_eq!(parse(&buffer[..len_bytes]), alone);
        }
    }
}

#[test]
fn a_client_of_the_binary_protocol_is_closed_at_once() {
    assert_eq!(parse(&[0x80]), Parsed::Hopeless);
    assert_eq!(parse(b"version"), Parsed::Incomplete);
}
