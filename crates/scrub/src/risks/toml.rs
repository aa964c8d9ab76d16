//! Settings in files of container runtimes, which are TOML. Only what such files use is read: tables, and settings of one line or of a list.

/// One setting of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// The table that it is in, as the file names it.
    pub(super) table: String,
    key: String,
    value: String,
}

impl Setting {
    /// Whether it sets this option, in whatever table.
    pub(super) fn is(&self, option: &str) -> bool {
        let last = self.key.rsplit('.').next().unwrap_or_default();
        unquoted(last) == option
    }

    /// Its key, without quotes.
    pub(super) fn key(&self) -> &str {
        unquoted(&self.key)
    }

    /// Its value, without quotes.
    pub(super) fn value(&self) -> &str {
        unquoted(&self.value)
    }

    /// The entries of its value, which is a list.
    pub(super) fn list(&self) -> Vec<&str> {
        let entries = self.value.trim().trim_matches(['[', ']']).split(',').map(unquoted);
        entries.filter(|entry| !entry.is_empty()).collect()
    }
}

/// All settings of a file, in their order.
pub(super) fn settings(text: &str) -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    let mut table = String::new();
    let mut list_is_open = false;
    for line in text.lines() {
        let line = without_comment(line).trim();
        if list_is_open {
            if let Some(last) = all.last_mut() {
                last.value.push_str(line);
                list_is_open = is_open(&last.value);
            }
        } else if line.starts_with('[') {
            table = line.trim_matches(['[', ']']).trim().to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            list_is_open = is_open(value);
            all.push(Setting {
                table: table.clone(),
                key: key.trim().to_owned(),
                value: value.trim().to_owned(),
            });
        }
    }
    all
}

/// A line up to its comment.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (position, letter) in line.char_indices() {
        match quote {
            None if letter == '#' => return &line[..position],
            None if matches!(letter, '"' | '\'') => quote = Some(letter),
            Some(open) if open == letter => quote = None,
            _ => {}
        }
    }
    line
}

/// Whether a list has begun in a value and not ended.
fn is_open(value: &str) -> bool {
    value.trim_start().starts_with('[') && value.matches('[').count() > value.matches(']').count()
}

fn unquoted(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

#[cfg(test)]
mod tests {
    use super::*;

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
  plugins.'a.b'.enable_cdi=true
[[registry]]
location = \"q.example/#1\"
";
        let all = settings(text);
        let of = |option: &str| all.iter().find(|setting| setting.is(option)).unwrap();
        assert_eq!(all.len(), 5, "{all:?}");
        assert_eq!((of("version").value(), of("version").table.as_str()), ("3", ""));
        assert_eq!(
            of("imports").list(),
            ["/etc/containerd/conf.d/*.toml", "/opt/more.toml"]
        );
        assert_eq!(of("enable_criu").value(), "false");
        assert_eq!(of("enable_criu").table, "plugins.\"io.containerd.cri.v1.runtime\"");
        assert_eq!(of("enable_cdi").value(), "true");
        assert_eq!(
            (of("location").table.as_str(), of("location").value()),
            ("registry", "q.example/#1")
        );
    }

    #[test]
    fn empty_lists_and_text_without_settings_are_nothing() {
        assert!(settings("# a = 1\n\nno setting\n[table]\n").is_empty());
        let all = settings("a = []\nb = [\n]\nc = 1");
        let lists: Vec<usize> = all.iter().map(|setting| setting.list().len()).collect();
        assert_eq!(lists, [0, 0, 1], "{all:?}");
    }
}
