//! The C library, called from C (`c_api.c`), with a single host as the whole cluster.

use std::ffi::{c_char, CString};
use std::net::UdpSocket;

// The library is called only from C.
use inband as _;

extern "C" {
    fn inband_fuzz_c_api(config_path: *const c_char, data: *const u8, len_bytes: usize) -> i32;
}

struct Host {
    config_path: CString,
    _dir: tempfile::TempDir,
}

thread_local! {
    static HOST: Host = configure();
}

fn configure() -> Host {
    let dir = crate::scratch();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    let address = socket.local_addr().expect("it is bound");
    let state = dir.path().join("state");
    let text = format!(
        "[cluster]\nname = \"fuzz\"\nepoch = 1\nfirst_instance = 1\nring_slots = 64\ndurability = \"memory\"\n\
         [host]\nnode = 1\nstate_dir = {state:?}\ndata_dir = {:?}\ndataplane = \"udp\"\n\
         [[node]]\nid = 1\nname = \"all/1\"\naddress = \"{address}\"\n\
         roles = [\"leader\", \"acceptor\", \"replica\"]\n",
        state.join("data")
    );
    let path = dir.path().join("host.toml");
    std::fs::write(&path, text).expect("it is written");
    let path = path.into_os_string().into_string().expect("a plain path");
    Host {
        config_path: CString::new(path).expect("no zero in it"),
        _dir: dir,
    }
}

/// A sequence of calls.
pub fn run(bytes: &[u8]) {
    HOST.with(|host| {
        // SAFETY: a terminated string, and as many bytes as said; both outlive the call.
        #[allow(unsafe_code)]
        let result =
            unsafe { inband_fuzz_c_api(host.config_path.as_ptr(), bytes.as_ptr(), bytes.len()) };
        assert_eq!(result, 0, "the host starts");
    });
}
