//! `[log]`: what a host logs, and how.

use std::str::FromStr;

use serde::Deserialize;
use toml::Spanned;

use super::file::{mistake, Mistake};
use super::LogConfig;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLog {
    format: Option<Spanned<String>>,
    level: Option<Spanned<String>>,
}

fn named<T: FromStr<Err = String> + Default>(
    key: &str,
    text: &Option<Spanned<String>>,
) -> Result<T, Mistake> {
    let Some(text) = text else {
        return Ok(T::default());
    };
    let why = |why: String| mistake(text, format!("{key}: {why}"));
    text.get_ref().parse().or_else(why)
}

impl RawLog {
    pub(super) fn check(&self) -> Result<LogConfig, Mistake> {
        Ok(LogConfig {
            format: named("log.format", &self.format)?,
            level: named("log.level", &self.level)?,
        })
    }
}
