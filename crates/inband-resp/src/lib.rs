//! The server side of RESP, the Redis protocol: finds requests in socket input and writes replies. Also what every
//! server needs besides: listeners and connections ([`front`]), client sockets ([`wire`]) with or without TLS, their
//! buffers ([`buffer`]), timeouts ([`timeouts`]) and passwords. Contains no commands.

pub mod buffer;
pub mod front;
pub mod limits;
pub mod password;
pub mod reply;
pub mod request;
pub mod timeouts;
pub mod wire;
