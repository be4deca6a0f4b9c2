//! Unary gRPC calls over HTTP/2: as much of gRPC as etcd's KV service needs.

use std::net::SocketAddr;

use anyhow::{bail, ensure, Context, Result};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::net::TcpStream;

/// A message is preceded by a byte that says "not compressed" and its length.
const PREFIX_LEN_BYTES: usize = 5;

/// One HTTP/2 connection; clones share it.
#[derive(Clone)]
pub struct Channel {
    sender: SendRequest<Bytes>,
    address: SocketAddr,
}

impl Channel {
    /// Connect. Must be called within a `LocalSet`, which then drives the connection.
    pub async fn connect(address: SocketAddr) -> Result<Channel> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("etcd at {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = h2::client::handshake(stream).await?;
        // An error of the connection is also an error of every call on it.
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        Ok(Channel { sender, address })
    }

    /// Call a method and return its answer; an answer that is not OK is an error.
    pub async fn call(&mut self, path: &str, message: Bytes) -> Result<Bytes> {
        let request = Request::post(format!("http://{}{path}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut body) = sender.send_request(request, false)?;
        let mut framed = BytesMut::with_capacity(PREFIX_LEN_BYTES + message.len());
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len())?);
        framed.extend_from_slice(&message);
        body.send_data(framed.freeze(), true)?;
        let response = response.await?;
        ensure!(
            response.status().is_success(),
            "{path}: HTTP status {}",
            response.status()
        );
        // An error without an answer has its status among the first headers.
        check_status(path, response.headers())?;
        let mut body = response.into_body();
        let mut answer = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            answer.extend_from_slice(&chunk);
        }
        match body.trailers().await? {
            Some(trailers) => check_status(path, &trailers)?,
            None => bail!("{path}: the answer has no status"),
        }
        ensure!(
            answer.len() >= PREFIX_LEN_BYTES && answer[0] == 0,
            "{path}: an answer of {} bytes is not one uncompressed message",
            answer.len()
        );
        Ok(answer.freeze().slice(PREFIX_LEN_BYTES..))
    }
}

fn check_status(path: &str, headers: &HeaderMap) -> Result<()> {
    let Some(status) = headers.get("grpc-status") else {
        return Ok(());
    };
    let message = headers
        .get("grpc-message")
        .and_then(|m| m.to_str().ok())
        .unwrap_or("");
    ensure!(
        status == "0",
        "{path}: gRPC status {} {message}",
        status.to_str().unwrap_or("?")
    );
    Ok(())
}
