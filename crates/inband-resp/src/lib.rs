//! RESP, the protocol of Redis, from the server's side: requests found in what a socket brings, replies
//! written to what it takes. No socket and no command in it.

pub mod limits;
pub mod reply;
pub mod request;
