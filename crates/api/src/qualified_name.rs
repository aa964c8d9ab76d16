//! Names as Kubernetes checks them in keys of labels and in a `ResourceQuota`.

/// Most characters of a name, and of the value of a label.
const MAX_NAME: usize = 63;
/// Most characters of the domain before a name.
const MAX_DOMAIN: usize = 253;

/// Whether a text is a qualified name (`IsQualifiedName` of Kubernetes): a name, or a domain and a name with a slash between them.
pub fn is_qualified_name(text: &str) -> bool {
    let (domain, name) = text
        .split_once('/')
        .map_or((None, text), |(domain, name)| (Some(domain), name));
    let is_part = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        part.bytes().all(|byte| inner(byte) || byte == b'-')
            && part.bytes().next().is_some_and(inner)
            && part.bytes().next_back().is_some_and(inner)
    };
    let is_domain = |domain: &str| domain.len() <= MAX_DOMAIN && domain.split('.').all(is_part);
    domain.is_none_or(is_domain) && !name.is_empty() && is_label_value(name)
}

/// Whether a text can be the value of a label: as a name, or empty.
pub fn is_label_value(value: &str) -> bool {
    let ends = [value.bytes().next(), value.bytes().next_back()];
    value.len() <= MAX_NAME
        && value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && ends.into_iter().flatten().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qualified_name_is_a_name_that_may_have_a_domain() {
        for good in [
            "a.example.com/x",
            "example/x",
            "x",
            "X.y_z",
            "count/widgets.example.com",
        ] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in [
            "",
            "/x",
            "Example.com/x",
            "-a.com/x",
            "a..b/x",
            "a.com/",
            "a/b/c",
            "a/.b",
        ] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
        let long = "a".repeat(MAX_NAME);
        assert!(is_qualified_name(&format!("count/{long}")));
        assert!(!is_qualified_name(&format!("count/{long}a")));
    }
}
