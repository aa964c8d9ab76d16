//! Removes what looks like a secret from objects and logs. Pure.
//!
//! Better too much than too little: a name that looks like a token is removed, too.

use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

/// What stands in the place of what was removed.
pub(super) const REMOVED: &str = "[removed]";
/// The annotation in which kubectl keeps a copy of an object, and the list of who set which field: both only repeat.
const REPEATED: [&str; 2] = ["kubectl.kubernetes.io/last-applied-configuration", "managedFields"];
/// Words that make the value of a field secret; as parts of a name, in lower case and without separators.
const SECRET_WORDS: [&str; 13] = [
    "token",
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "accesskey",
    "privatekey",
    "secretkey",
    "signingkey",
    "encryptionkey",
    "credential",
    "keydata",
    "cookie",
];
/// The same at the end of a name only: `secretName` and `secretRef` name a Secret, and `bypass` is none.
const SECRET_ENDINGS: [&str; 3] = ["secret", "pwd", "dbpass"];
/// Field with the environment of a container. Its values are removed whatever their names are: nothing says which of them are secrets.
const ENVIRONMENT: &str = "env";

/// The name of a secret, as in kubeconfigs, environments, flags, JSON and logs.
const NAME: &str = concat!(
    r"(?i-u:(?:[a-z0-9_-]*(?:token|password|passwd|passphrase|pwd|secret|credential|cookie|api[_-]?key|access[_-]?key",
    r"|private[_-]?key|signing[_-]?key|code[_-]?verifier|device[_-]?code|client[_-]?assertion))",
    r"|client-key-data|client-certificate-data|certificate-authority-data|authorization)",
);
/// Its value. A backslash within quotation marks escapes what follows it, unless that is the quotation mark at the end.
const VALUE: &str = r#"(?:\\?["'](?:[^"'\\\r\n]|\\[^"'\r\n])*|[^ \t\r\n"',;}\]{\[]+)"#;
/// All values of a list up to its end, or that of the line: in quotation marks, removed already, or anything else.
const LIST: &str = r#"(?:"(?:[^"\\\r\n]|\\[^\r\n])*"|\[removed\]|[^\]\r\n])+"#;

/// Patterns of secrets, and what they become. The library is built without tables of Unicode, so classes are spelled out.
static PATTERNS: LazyLock<Option<Vec<(Regex, &'static str)>>> = LazyLock::new(|| {
    let assigned = format!(r#"{NAME}\\?["']?[ \t]*[:=][ \t]*"#);
    let (in_list, alone) = (format!(r"({assigned}\[){LIST}"), format!("({assigned}){VALUE}"));
    let patterns = [
        // Headers. Some logs have lists of their values; a cookie has several parts.
        (r#"((?i-u:cookie)[ \t]*[:=][ \t]*\[?)[^\r\n"'\]\[]+"#, "$1[removed]"),
        (r"(?i-u:(bearer|basic))[ \t]+[A-Za-z0-9._~+/=-]{6,}", "$1 [removed]"),
        (in_list.as_str(), "$1[removed]"),
        // JSON Web Tokens: service accounts, OIDC.
        (r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?", REMOVED),
        // URLs: a name with a password, or a token alone; codes and signatures in their queries.
        (r#"://[^ \t\r\n/@"']+@"#, "://[removed]@"),
        (
            r#"([?&](?i-u:code|assertion|sig|[a-z0-9_-]*signature)=)[^&# \t\r\n"']+"#,
            "$1[removed]",
        ),
        // Flags with their value behind a space.
        (
            concat!(
                r"(?i-u:(--[a-z0-9-]*(?:token|password|passwd|passphrase|secret|credential|api-key|access-key|private-key)))",
                r"[ \t]+[^ \t\r\n-][^ \t\r\n]*",
            ),
            "$1 [removed]",
        ),
        // Keys of well-known services.
        (r"(?-u:\b)(AKIA|ASIA)[0-9A-Z]{16}", REMOVED),
        (
            r"(?-u:\b)(ghp|gho|ghs|ghu|github_pat|hf|nvapi|sk|glpat|xoxb|xoxp|dckr_pat)[-_][A-Za-z0-9_-]{16,}",
            REMOVED,
        ),
        (alone.as_str(), "$1[removed]"),
    ];
    let compiled = patterns.map(|(pattern, replacement)| Regex::new(pattern).map(|regex| (regex, replacement)));
    compiled.into_iter().collect::<Result<_, _>>().ok()
});
/// Long runs of base64, also as in URLs: keys, certificates and tokens that lost their frame.
static BASE64: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[A-Za-z0-9+/_-]{60,}={0,2}").ok());

/// A text without what looks like a token, key, certificate or kubeconfig.
pub(super) fn redact_text(text: &str) -> String {
    let (Some(patterns), Some(base64)) = (PATTERNS.as_ref(), BASE64.as_ref()) else {
        // Cannot happen: the patterns are constants. Nothing is better than a secret.
        return REMOVED.into();
    };
    let mut text = remove_pem(text);
    for (pattern, replacement) in patterns {
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    let replace = |found: &Captures<'_>| {
        let run = &found[0];
        let has = |is: fn(&char) -> bool| run.chars().any(|character| is(&character));
        // Hashes are written with digits and small letters only, and are of use.
        let is_mixed = has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && has(char::is_ascii_digit);
        if is_mixed { REMOVED.to_owned() } else { run.to_owned() }
    };
    base64.replace_all(&text, replace).into_owned()
}

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
/// Bytes of a PEM block: a key of 16,384 bits has 13 KiB. Tenants choose some of the texts that programs log, and a beginning alone must not remove all that
/// follows.
const MOST_PEM: usize = 32 << 10;

/// Removes PEM blocks, also those whose line breaks are escaped and those that are cut off: at most [`MOST_PEM`] of each.
fn remove_pem(text: &str) -> String {
    let mut rest = text;
    let mut result = String::with_capacity(text.len());
    while let Some((before, block)) = rest.split_once(BEGIN) {
        result.push_str(before);
        result.push_str(REMOVED);
        let most = block.floor_char_boundary(MOST_PEM);
        let end = { block[..most].split_once(END) }.and_then(|(_, end)| end.split_once(DASHES));
        let after = end.map_or(0, |(_, after)| after.len());
        rest = &block[most - after..];
    }
    result.push_str(rest);
    remove_pem_ends(&result)
}

/// Removes the ends of PEM blocks whose beginnings are not in the text, because only the last lines of a log are read: what may be
/// base64 with line breaks and indentation, back to the first other character.
fn remove_pem_ends(text: &str) -> String {
    let is_base64 = |character: char| character.is_ascii_alphanumeric() || "+/=\\ \t\r\n".contains(character);
    let mut rest = text;
    let mut result = String::with_capacity(text.len());
    while let Some((before, after)) = rest.split_once(END) {
        result.push_str(before.trim_end_matches(is_base64));
        result.push_str(REMOVED);
        rest = after.split_once(DASHES).map_or("", |(_, after)| after);
    }
    result.push_str(rest);
    result
}

/// An object without secrets: neither in fields with such a name, nor in environment variables, nor in any text.
pub(super) fn redact_object(value: &mut Value) {
    match value {
        Value::String(text) => *text = redact_text(text),
        Value::Array(items) => {
            // `["--token", "x"]`
            let mut is_value_of_secret = false;
            for item in items {
                let flag = item
                    .as_str()
                    .filter(|text| text.starts_with('-') && !text.contains('='));
                let is_secret_flag = flag.is_some_and(is_secret_name);
                if is_value_of_secret && item.is_string() && flag.is_none() {
                    *item = Value::from(REMOVED);
                }
                is_value_of_secret = is_secret_flag;
                redact_object(item);
            }
        }
        Value::Object(fields) => {
            fields.retain(|key, _| !REPEATED.contains(&key.as_str()));
            for variable in fields
                .get_mut(ENVIRONMENT)
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                if let Some(value) = variable.get_mut("value") {
                    *value = Value::from(REMOVED);
                }
            }
            // A header, a parameter, or something else of that form.
            let is_secret = fields.get("name").and_then(Value::as_str).is_some_and(is_secret_name);
            for (key, field) in fields.iter_mut() {
                let is_secret = (is_secret && key == "value") || (is_secret_name(key) && field.is_string());
                if is_secret {
                    *field = Value::from(REMOVED);
                } else {
                    redact_object(field);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether the value of something with this name is a secret.
fn is_secret_name(name: &str) -> bool {
    let plain: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|character| character.to_ascii_lowercase())
        .collect();
    SECRET_WORDS.iter().any(|word| plain.contains(word)) || SECRET_ENDINGS.iter().any(|end| plain.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CANARY: &str = "CANARYq7Zx19Kd";

    #[test]
    fn the_patterns_are_valid() {
        assert!(PATTERNS.is_some() && BASE64.is_some());
    }

    #[test]
    fn no_canary_survives_in_text() {
        let base64 = format!("{CANARY}{}", "aB3/".repeat(20));
        for text in [
            format!("token={CANARY}"),
            format!("token: {CANARY}"),
            format!("{{\"token\":\"{CANARY}\"}}"),
            format!("{{\\\"token\\\":\\\"{CANARY}\\\"}}"),
            format!("--bootstrap-token={CANARY} x"),
            format!("AWS_SECRET_ACCESS_KEY={CANARY}"),
            format!("MY_PASSWORD='{CANARY} with spaces'"),
            format!("client_secret={CANARY}"),
            format!("    client-key-data: {CANARY}"),
            format!("    certificate-authority-data: {CANARY}"),
            format!("Authorization: Bearer {CANARY}"),
            format!("authorization: Basic {CANARY}=="),
            format!("GET / with BEARER {CANARY}"),
            format!("https://user:{CANARY}@example.com/x"),
            format!("eyJhbGciOiJSUzI1NiJ9.{CANARY}.{CANARY}"),
            format!("hf_{CANARY}AAAAAAAAAA"),
            format!("ghp_{CANARY}AAAAAAAAAA"),
            format!("a -----BEGIN EC PRIVATE KEY-----\n{CANARY}\n-----END EC PRIVATE KEY----- b"),
            format!("-----BEGIN CERTIFICATE-----\\n{CANARY}\\n-----END CERTIFICATE-----\\n"),
            format!("-----BEGIN CERTIFICATE-----\n{CANARY}"),
            format!("data {base64}"),
            format!("{CANARY}==\n-----END EC PRIVATE KEY-----\n"),
            format!("MIGHAgEAMBMG\\n{CANARY}\\n-----END PRIVATE KEY-----"),
            format!("berth-syncer --bootstrap-token {CANARY} --port 1"),
            format!("PGPASSPHRASE={CANARY}"),
            format!("Set-Cookie: session={CANARY}"),
            format!("{{\"password\":\"ab\\n{CANARY}\"}}"),
            format!("clone https://{CANARY}@git.example.com/x"),
            format!("GET /callback?state=1&code={CANARY} 200"),
            format!("GET https://storage.example.com/a?X-Amz-Signature={CANARY}"),
            format!("grant_type=authorization_code&code={CANARY}&code_verifier={CANARY}"),
            format!("device_code={CANARY}"),
            format!("{{\"client_assertion\":\"{CANARY}\"}}"),
            format!("Cookie: theme=dark; session={CANARY}"),
            format!("headers map[Cookie:[theme=dark; session={CANARY}] X-Api-Key:[{CANARY}]]"),
            format!("{{\"headers\":{{\"cookie\":[\"theme=dark; session={CANARY}\"],\"x-api-key\":[\"{CANARY}\"]}}}}"),
            format!("map[Authorization:[Bearer {CANARY}] Accept:[text/html]]"),
            format!("map[X-Api-Key:[aaa {CANARY}] password:[a, {CANARY}"),
            format!("{{\"authorization\":[\"Basic {CANARY}==\",\"Bearer x {CANARY}\"]}}"),
            format!("{{\"password\":[\"a]b {CANARY}\",\"{CANARY}\"]}}"),
            format!("map[Authorization:[Bearer opaqueTOKEN123 {CANARY}]]"),
            format!("opaque {CANARY}_{}", "aB3-".repeat(20)),
        ] {
            let redacted = redact_text(&text);
            assert!(!redacted.contains(CANARY), "{text} became {redacted}");
            assert!(redacted.contains(REMOVED), "{text} became {redacted}");
        }
    }

    #[test]
    fn what_helps_to_find_a_fault_stays() {
        for text in [
            "level=INFO msg=\"reconciled\" tenant=team/vision seconds=0.4",
            "image registry.example.com/a@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "pod ml/train-0 is Pending: 0/3 nodes are available",
            "GET /apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision 404",
            "uid 7b7f0f4e-62f6-4b8e-9b52-6f5a9d3c2a11",
            "Secret team/vision-kubeconfig is written",
            "exit code: 137, code=500 state=waiting",
            "GET /version?timeout=32s&code_name=x from node-a@example.com",
            "berth-a-very-long-name-of-a-tenant-and-of-its-control-plane-namespace-0f3a9c-cp/kube-apiserver-6d5f7c9b8d-x2x7k",
        ] {
            assert_eq!(redact_text(text), text);
        }
        let headers =
            redact_text("map[Authorization:[Bearer opaqueTOKEN123] Cookie:[a=1; b=2] Accept:[text/html]] 200");
        assert_eq!(
            headers,
            "map[Authorization:[[removed]] Cookie:[[removed]] Accept:[text/html]] 200"
        );
        let around = redact_text("a -----BEGIN X-----\nk\n-----END X----- b -----BEGIN Y-----\nk\n-----END Y----- c");
        assert_eq!(around, "a [removed] b [removed] c");
    }

    #[test]
    fn a_beginning_of_a_key_removes_no_more_of_a_log_than_a_key_may_have() {
        let lines = "level=INFO msg=\"reconciled ü\" tenant=team/vision\n".repeat(5000);
        for (begin, end) in [
            ("-----BEGIN ", ""),
            ("-----BEGIN X", "-----END X-----\n"),
            ("-----BEGIN XX", ""),
        ] {
            let redacted = redact_text(&format!("first {begin}{lines}{end}last"));
            assert!(redacted.starts_with("first [removed]"), "{begin}");
            assert!(redacted.ends_with("last"), "{begin}");
            assert!(redacted.len() + MOST_PEM + 100 > lines.len(), "{begin}");
        }
    }

    #[test]
    fn no_canary_survives_in_objects() {
        let mut object = json!({
            "metadata": {
                "name": "a", "managedFields": [{"x": CANARY}],
                "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": CANARY,
                    "example.com/api-key": CANARY,
                    "example.com/client-secret": CANARY,
                    "note": format!("password={CANARY}"),
                },
            },
            "spec": {
                "automountServiceAccountToken": false,
                "containers": [{
                    "env": [{"name": "HF_TOKEN", "value": CANARY}, {"name": "DSN", "value": CANARY},
                        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                    "args": [format!("--token={CANARY}"), "--port=1", "--db-password", CANARY, "--wait"],
                }],
                "headers": [{"name": "X-API-Key", "value": CANARY}, {"name": "Accept", "value": "any"}],
                "volumes": [{"secret": {"secretName": "certificates"}}],
            },
        });
        redact_object(&mut object);
        assert!(!object.to_string().contains(CANARY), "{object}");
        assert_eq!(object["metadata"]["name"], "a");
        assert_eq!(object["spec"]["automountServiceAccountToken"], false);
        let container = &object["spec"]["containers"][0];
        assert_eq!(container["env"][1]["name"], "DSN");
        assert_eq!(
            container["env"][2]["valueFrom"]["fieldRef"]["fieldPath"],
            "metadata.name"
        );
        assert_eq!(container["args"][1], "--port=1");
        assert_eq!(container["args"][4], "--wait");
        assert_eq!(object["spec"]["headers"][1]["value"], "any");
        assert_eq!(object["spec"]["volumes"][0]["secret"]["secretName"], "certificates");
    }
}
