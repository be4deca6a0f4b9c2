//! RESP, the protocol of Redis, from the server's side: requests found in what a socket brings, replies
//! written to what it takes; and what every server of it needs beside: listeners and connections ([`front`]), a
//! client's socket ([`wire`]), with TLS or without, its bytes ([`buffer`]), its time-outs ([`timeouts`]), a
//! password. No command in it.

pub mod buffer;
pub mod front;
pub mod limits;
pub mod password;
pub mod reply;
pub mod request;
pub mod timeouts;
pub mod wire;
