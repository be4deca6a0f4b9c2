//! Settings in force, for `inband config show`: value, default and source of each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Source of a value that cannot be configured.
pub const BUILT_IN: &str = "built in";
/// Source of a value that has not been configured.
pub const DEFAULT: &str = "default";

/// A timeout, a limit, or another setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// As in the configuration, with the unit as its suffix: `host.timing.suspect_after_ms`.
    pub name: String,
    pub value: String,
    pub default: String,
    /// `default`, `built in`, a file and its line, or a command.
    pub from: String,
}

impl Setting {
    pub fn new(
        name: impl Into<String>,
        value: impl ToString,
        default: impl ToString,
        from: impl Into<String>,
    ) -> Setting {
        Setting {
            name: name.into(),
            value: value.to_string(),
            default: default.to_string(),
            from: from.into(),
        }
    }
}

fn in_words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the fields of a struct as settings. `from` is called with the name of each and whether its value is the
/// default.
pub fn of_fields<T: Serialize>(
    prefix: &str,
    values: &T,
    defaults: &T,
    from: impl Fn(&str, bool) -> String,
) -> Vec<Setting> {
    let object = |of: &T| match serde_json::to_value(of) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (values, defaults) = (object(values), object(defaults));
    let setting = |(field, value): (&String, &Value)| {
        let name = format!("{prefix}{field}");
        let (value, default) = (in_words(value), defaults.get(field).map(in_words));
        let default = default.unwrap_or_default();
        let from = from(&name, value == default);
        Setting::new(name, value, default, from)
    };
    values.iter().map(setting).collect()
}

/// Source of a value in a configuration written by `inband up`.
pub fn of_up(_name: &str, is_default: bool) -> String {
    match is_default {
        true => DEFAULT.to_owned(),
        false => "inband up".to_owned(),
    }
}

/// Returns the fields of a struct that cannot be configured, as settings.
pub fn built_in<T: Serialize>(prefix: &str, values: &T) -> Vec<Setting> {
    of_fields(prefix, values, values, |_, _| BUILT_IN.to_owned())
}

/// Returns the line (from 1) of a TOML text that sets `table.key`; `None` if no line does.
pub fn line_of(text: &str, name: &str) -> Option<usize> {
    let mut table = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            table = header
                .split(']')
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned();
            continue;
        }
        let Some((key, _)) = line.split_once('=') else {
            continue;
        };
        let key = key.trim();
        let is_it = match table.is_empty() {
            true => key == name,
            false => {
                name.strip_prefix(&table[..])
                    .and_then(|rest| rest.strip_prefix('.'))
                    == Some(key)
            }
        };
        if is_it {
            return Some(number);
        }
    }
    None
}

/// Returns the settings of several hosts in one list: those that differ are labelled with the host.
pub fn of_hosts(hosts: Vec<(String, Vec<Setting>)>) -> Vec<Setting> {
    let mut order: Vec<String> = Vec::new();
    let mut by_name: BTreeMap<String, Vec<(String, Setting)>> = BTreeMap::new();
    for (host, settings) in hosts {
        for setting in settings {
            let name = setting.name.clone();
            if !by_name.contains_key(&name) {
                order.push(name.clone());
            }
            by_name
                .entry(name)
                .or_default()
                .push((host.clone(), setting));
        }
    }
    let mut all = Vec::new();
    for name in order {
        let of_hosts = by_name.remove(&name).unwrap_or_default();
        let is_same = of_hosts.windows(2).all(|pair| pair[0].1 == pair[1].1);
        if is_same {
            all.extend(of_hosts.into_iter().take(1).map(|(_, setting)| setting));
            continue;
        }
        all.extend(of_hosts.into_iter().map(|(host, setting)| Setting {
            name: format!("{name} ({host})"),
            ..setting
        }));
    }
    all
}

/// Returns a table for display.
pub fn table(settings: &[Setting]) -> String {
    let width = |of: fn(&Setting) -> &String| settings.iter().map(|s| of(s).len()).max();
    let name = width(|s| &s.name).unwrap_or(0).max(7);
    let value = width(|s| &s.value).unwrap_or(0).max(5);
    let default = width(|s| &s.default).unwrap_or(0).max(7);
    let line = |s: [&str; 4]| {
        let [a, b, c, d] = s;
        format!("{a:<name$}  {b:<value$}  {c:<default$}  {d}\n")
    };
    let mut text = line(["setting", "value", "default", "from"]);
    for s in settings {
        text += &line([&s.name, &s.value, &s.default, &s.from]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Times {
        retry_ms: u64,
        name: &'static str,
    }

    #[test]
    fn every_field_is_a_setting() {
        let (now, default) = (
            Times {
                retry_ms: 5,
                name: "a",
            },
            Times {
                retry_ms: 7,
                name: "a",
            },
        );
        let from = |name: &str, is_default: bool| format!("{name} {is_default}");
        let settings = of_fields("x.", &now, &default, from);
        assert_eq!(
            settings,
            [
                Setting::new("x.name", "a", "a", "x.name true"),
                Setting::new("x.retry_ms", 5, 7, "x.retry_ms false"),
            ]
        );
    }

    #[test]
    fn the_line_that_sets_a_value_is_found() {
        let text =
            "top = 1\n[host]\nnode = 1 # x\n\n[host.timing] # all\nspin_us = 0\n[[node]]\nid = 1\n";
        assert_eq!(line_of(text, "top"), Some(1));
        assert_eq!(line_of(text, "host.node"), Some(3));
        assert_eq!(line_of(text, "host.timing.spin_us"), Some(6));
        assert_eq!(line_of(text, "host.spin_us"), None);
        assert_eq!(line_of(text, "host.timing.suspect_after_ms"), None);
    }

    #[test]
    fn what_differs_between_hosts_is_named_with_the_host() {
        let of = |n: u32| {
            vec![
                Setting::new("same", 1, 1, DEFAULT),
                Setting::new("own", n, 1, "f"),
            ]
        };
        let all = of_hosts(vec![("a".into(), of(1)), ("b".into(), of(2))]);
        let names: Vec<&str> = all.iter().map(|s| &s.name[..]).collect();
        assert_eq!(names, ["same", "own (a)", "own (b)"]);
        let text = table(&all);
        assert!(
            text.starts_with("setting  value  default  from\n"),
            "{text}"
        );
    }
}
