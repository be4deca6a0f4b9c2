//! The program's log: lines of text or of JSON on standard error.
//!
//! It starts with what the environment says, before the command line and the configuration are read; [`configure`] applies
//! those. `INBAND_LOG` (a filter, see [`EnvFilter`]) and `INBAND_LOG_FORMAT` win over a configuration file, and the
//! command line wins over them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{reload, EnvFilter, Registry};

use crate::by_name;

/// The filter, which may differ by module: `info,inband_kv=debug`.
const FILTER_ENV: &str = "INBAND_LOG";
/// `text` or `json`.
const FORMAT_ENV: &str = "INBAND_LOG_FORMAT";

type Lines = Box<dyn Layer<Registry> + Send + Sync>;

struct Handles {
    lines: reload::Handle<Lines, Registry>,
    filter: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
}

static HANDLES: OnceLock<Handles> = OnceLock::new();
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people: time, level, message.
    #[default]
    Text,
    /// For log collectors: one JSON object per line, with `timestamp`, `level`, `message` and the event's fields.
    Json,
}

by_name!(LogFormat, "log format", Text = "text", Json = "json");

/// What is logged: this and everything more severe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

by_name!(
    LogLevel,
    "log level",
    Error = "error",
    Warn = "warn",
    Info = "info",
    Debug = "debug"
);

/// `[log]` of a host's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogConfig {
    pub format: LogFormat,
    pub level: LogLevel,
}

fn lines(format: LogFormat) -> Lines {
    // Internal errors would be printed to the same place, with a panic.
    let all = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => all.boxed(),
        LogFormat::Json => all
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
    }
}

/// Starts the log, with the filter in `INBAND_LOG` and the format in `INBAND_LOG_FORMAT`.
pub fn start() {
    let filter = filter_of_environment().unwrap_or_else(|| EnvFilter::new("info"));
    let (filter, filter_handle) = reload::Layer::new(filter);
    let (lines, lines_handle) = reload::Layer::new(lines(LogFormat::Text));
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
    let handles = Handles {
        lines: lines_handle,
        filter: Box::new(move |filter| filter_handle.reload(filter)),
    };
    let _ = HANDLES.set(handles);
    match format_of_environment() {
        Some(Ok(format)) => set_format(format),
        Some(Err(error)) => tracing::warn!("{FORMAT_ENV}: {error}"),
        None => {}
    }
}

/// Applies what a configuration says, and the format that the command line says, if it does.
pub fn configure(config: LogConfig, format: Option<LogFormat>) {
    let of_environment = || format_of_environment().and_then(Result::ok);
    set_format(format.or_else(of_environment).unwrap_or(config.format));
    set_level(config.level);
}

/// Changes the level, unless the environment has a filter. Returns whether it has none.
pub fn set_level(level: LogLevel) -> bool {
    if filter_of_environment().is_some() {
        return false;
    }
    if let Some(handles) = HANDLES.get() {
        if let Err(error) = (handles.filter)(EnvFilter::new(level.to_string())) {
            tracing::warn!("log.level = {level}: {error}");
        }
    }
    true
}

/// Changes the format of the lines from now on.
pub fn set_format(format: LogFormat) {
    let Some(handles) = HANDLES.get() else {
        return;
    };
    let is_json = format == LogFormat::Json;
    if IS_JSON.swap(is_json, Ordering::AcqRel) == is_json {
        return;
    }
    if let Err(error) = handles.lines.reload(lines(format)) {
        tracing::warn!("log.format = {format}: {error}");
    }
    if is_json {
        // A collector takes no other lines. The default hook prints text.
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    } else {
        let _ = std::panic::take_hook();
    }
}

/// Whether every line on standard error must be JSON.
pub fn is_json() -> bool {
    IS_JSON.load(Ordering::Acquire)
}

fn filter_of_environment() -> Option<EnvFilter> {
    EnvFilter::try_from_env(FILTER_ENV).ok()
}

fn format_of_environment() -> Option<Result<LogFormat, String>> {
    std::env::var(FORMAT_ENV).ok().map(|text| text.parse())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_configuration() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        for level in [
            LogLevel::Error,
            LogLevel::Warn,
            LogLevel::Info,
            LogLevel::Debug,
        ] {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        let error = "verbose".parse::<LogLevel>().expect_err("no level");
        assert!(error.contains("\"debug\""), "{error}");
        let error = "xml".parse::<LogFormat>().expect_err("no format");
        assert!(error.contains("\"json\""), "{error}");
    }
}
