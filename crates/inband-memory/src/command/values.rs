//! `inband memory read` and `write`.

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_memory::cluster::ClusterArgs;
use inband_memory::line_client::LineClient;
use inband_memory::lines::LINE_LEN_BYTES;

/// Lines per request of a read.
const LINES_OF_A_READ: usize = 1_024;

/// Options of read.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// The first line, from 0
    line: u64,
    /// How many lines
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Print hexadecimal digits
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options of write.
#[derive(Debug, Args)]
pub struct WriteArgs {
    /// The line, from 0
    line: u64,
    /// The line's new content, at most 64 bytes; the rest is filled with zeros
    text: String,
    /// The text is given as hexadecimal digits
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

fn text_of(line: &[u8; LINE_LEN_BYTES], hex: bool) -> String {
    if hex {
        return line.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    let end = line
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    let bytes = line[..end].iter();
    bytes
        .flat_map(|byte| std::ascii::escape_default(*byte))
        .map(char::from)
        .collect()
}

fn bytes_of(text: &str, hex: bool) -> Result<Vec<u8>> {
    if !hex {
        return Ok(text.as_bytes().to_vec());
    }
    ensure!(
        text.len() % 2 == 0 && text.is_ascii(),
        "{text:?} is not pairs of hexadecimal digits"
    );
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(pair, 16)
            .with_context(|| format!("{pair:?} in {text:?} is not two hexadecimal digits"))
    });
    pairs.collect()
}

/// Connects for one request at a time.
fn connect(cluster: &ClusterArgs) -> Result<LineClient> {
    let mut config = cluster.config()?;
    config.window = 4;
    Ok(LineClient::connect(config)?)
}

impl ReadArgs {
    pub fn run(&self) -> Result<()> {
        ensure!(self.count > 0, "--count 0: nothing to read");
        let mut memory = connect(&self.cluster)?;
        let last = self
            .line
            .checked_add(self.count - 1)
            .context("--count is too much")?;
        ensure!(
            last < memory.lines(),
            "line {last}: the memory has lines 0 to {}",
            memory.lines() - 1
        );
        let mut first = self.line;
        while first <= last {
            let lines: Vec<u64> = (first..=last).take(LINES_OF_A_READ).collect();
            for (line, value) in lines.iter().zip(memory.read_lines(&lines)?) {
                println!("{line} {}", text_of(&value, self.hex));
            }
            first += lines.len() as u64;
        }
        Ok(())
    }
}

impl WriteArgs {
    pub fn run(&self) -> Result<()> {
        let bytes = bytes_of(&self.text, self.hex)?;
        ensure!(
            bytes.len() <= LINE_LEN_BYTES,
            "{} bytes: a line has {LINE_LEN_BYTES}",
            bytes.len()
        );
        let mut line = [0; LINE_LEN_BYTES];
        line[..bytes.len()].copy_from_slice(&bytes);
        connect(&self.cluster)?.write(self.line, &line)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_digits_come_back() {
        let mut line = [0; LINE_LEN_BYTES];
        line[..5].copy_from_slice(b"a\n\xff\x00b");
        assert_eq!(text_of(&line, false), "a\\n\\xff\\x00b");
        assert!(text_of(&line, true).starts_with("610aff006200"));
        assert_eq!(bytes_of("610aff", true).unwrap(), b"a\n\xff");
        for wrong in ["6", "6x", "é0"] {
            assert!(bytes_of(wrong, true).is_err(), "{wrong}");
        }
    }
}
