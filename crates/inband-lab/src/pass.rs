//! A program that passes everything, for hosts without their own.

use std::os::fd::AsFd;

use libbpf_rs::{Link, ObjectBuilder, Xdp, XdpFlags};
use nix::net::if_::if_nametoindex;

use crate::error::LabError;
use crate::lab::HOST_INTERFACE;

/// Aligned as an ELF reader may require.
#[repr(C, align(16))]
pub(crate) struct Aligned<B: ?Sized>(pub(crate) B);
static PROGRAM: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/pass.bpf.o")));

/// `XDP_PASS` on a host's interface, attached in the same way as a host's own program. Detached on drop.
#[derive(Debug)]
pub struct PassProgram {
    _link: Link,
}

impl PassProgram {
    /// Attaches to the interface in the calling thread's namespace. Fails if native mode is not available.
    pub(crate) fn attach() -> Result<Self, LabError> {
        let ifindex =
            if_nametoindex(HOST_INTERFACE).map_err(LabError::system("find the interface"))? as i32;
        let object = ObjectBuilder::default()
            .open_memory(&PROGRAM.0)
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(LabError::bpf("load XDP_PASS"))?;
        let program = object
            .progs_mut()
            .next()
            .expect("the embedded object contains one program");
        let link = program
            .attach_xdp(ifindex)
            .map_err(LabError::bpf("attach XDP_PASS"))?;
        // A link would choose the mode itself; a driver without native mode would get generic mode.
        Xdp::new(program.as_fd())
            .query_id(ifindex, XdpFlags::DRV_MODE)
            .and_then(|id| match id {
                0 => Err(libbpf_rs::Error::from_raw_os_error(nix::libc::EOPNOTSUPP)),
                _ => Ok(()),
            })
            .map_err(LabError::bpf("attach XDP_PASS in native mode"))?;
        Ok(Self { _link: link })
    }
}
