//! Settings in files of container runtimes, which are TOML.

use crate::Unclean;
use std::path::Path;
use toml::{Table, Value};

/// One setting of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    /// The names of the tables that it is in, without quotes and with dots between them.
    pub(super) table: String,
    key: String,
    value: Value,
}

impl Setting {
    /// Whether it sets this option, in whatever table.
    pub(super) fn is(&self, option: &str) -> bool {
        self.key == option
    }

    /// Its key.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Its value as text.
    pub(super) fn value(&self) -> String {
        text_of(&self.value)
    }

    /// The entries of its value, which is a list, as texts.
    pub(super) fn list(&self) -> Vec<String> {
        let entries = self.value.as_array().into_iter().flatten();
        entries.map(text_of).collect()
    }
}

/// Texts, numbers and switches as they are written. No option that is looked for has another value.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(is_on) => is_on.to_string(),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => String::new(),
    }
}

/// All settings of the text of a file.
///
/// # Errors
/// The text is no TOML: what the runtime makes of it is not known.
pub(super) fn settings(file: &Path, text: &str) -> Result<Vec<Setting>, Unclean> {
    let parsed: Table = text.parse().map_err(|error: toml::de::Error| Unclean::File {
        path: file.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error.message().to_owned()),
    })?;
    let mut all = Vec::new();
    collect("", parsed, &mut all);
    Ok(all)
}

/// Adds the settings of a table, and of those in it.
fn collect(name: &str, table: Table, all: &mut Vec<Setting>) {
    for (key, value) in table {
        let below = || {
            if name.is_empty() {
                key.clone()
            } else {
                format!("{name}.{key}")
            }
        };
        match value {
            Value::Table(inner) => collect(&below(), inner, all),
            Value::Array(list) if list.iter().any(Value::is_table) => {
                let below = below();
                for value in list {
                    if let Value::Table(inner) = value {
                        collect(&below, inner, all);
                    }
                }
            }
            value => all.push(Setting {
                table: name.to_owned(),
                key,
                value,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Setting> {
        settings(Path::new("/etc/a.toml"), text).unwrap()
    }

    #[test]
    fn settings_are_read_with_their_tables() {
        let text = "\
version = 3
imports = ['/etc/containerd/conf.d/*.toml', # of the distribution
  \"/opt/more.toml\",
]
[plugins.\"io.containerd.cri.v1.runtime\"] # the CRI
  # enable_criu = true
  enable_criu = false # not here
  a.'b.c'.enable_cdi=true
  inline = {enable_other = \"x # y\"}
[[registry]]
location = \"q.example/#1\"
";
        let all = read(text);
        let of = |option: &str| all.iter().find(|setting| setting.is(option)).unwrap();
        assert_eq!(all.len(), 6, "{all:?}");
        assert_eq!(
            (of("version").value().as_str(), of("version").table.as_str()),
            ("3", "")
        );
        assert_eq!(
            of("imports").list(),
            ["/etc/containerd/conf.d/*.toml", "/opt/more.toml"]
        );
        let runtime = "plugins.io.containerd.cri.v1.runtime";
        assert_eq!(of("enable_criu").value(), "false");
        assert_eq!(of("enable_criu").table, runtime);
        assert_eq!(of("enable_cdi").table, format!("{runtime}.a.b.c"));
        assert_eq!(of("enable_other").value(), "x # y");
        assert_eq!(of("location").table, "registry");
        assert_eq!(of("location").value(), "q.example/#1");
    }

    #[test]
    fn empty_files_have_no_settings_and_others_are_an_error() {
        assert!(read("# a = 1\n\n[table]\n").is_empty());
        let all = read("a = []\nb = [\n]\nc = [1]");
        let lists: Vec<usize> = all.iter().map(|setting| setting.list().len()).collect();
        assert_eq!(lists, [0, 0, 1], "{all:?}");
        for broken in ["a", "a = 1\na = 2", "[a"] {
            let error = settings(Path::new("/etc/a.toml"), broken).unwrap_err().to_string();
            assert!(error.starts_with("/etc/a.toml: "), "{error}");
        }
    }
}
