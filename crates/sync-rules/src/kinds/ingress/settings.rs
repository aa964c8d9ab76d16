//! Plain settings of ingress-nginx: annotations that concern the Ingress itself only, and what their values may be. The
//! controller writes the values into a configuration that it has for all tenants, and nginx loads none of it if one value is
//! wrong: `proxy_buffering yes`, a single buffer, a burst of 0 or a limit of 100000 connections are enough.

use crate::translation::{edge_text::PATH, pattern::Pattern};

/// Domain of the settings.
pub const NGINX: &str = "nginx.ingress.kubernetes.io/";
/// Makes paths regular expressions, if it is true.
pub const USE_REGEX: &str = "nginx.ingress.kubernetes.io/use-regex";
/// Makes paths regular expressions as well.
pub const REWRITE_TARGET: &str = "nginx.ingress.kubernetes.io/rewrite-target";

/// Networks whose clients are served, and no others.
pub const SOURCES: &str = "nginx.ingress.kubernetes.io/whitelist-source-range";
/// Networks whose clients are not served.
pub const DENIED_SOURCES: &str = "nginx.ingress.kubernetes.io/denylist-source-range";

static FLAG: Pattern = Pattern::new("^(true|false)$", "true or false");
static SWITCH: Pattern = Pattern::new("^(on|off)$", "on or off");
static WORD: Pattern = Pattern::limited("^[A-Za-z0-9._-]+$", &[], 128, "a word of letters, digits and . _ -");
static AFFINITY: Pattern = Pattern::new("^cookie$", "cookie");
static AFFINITY_MODE: Pattern = Pattern::new("^(balanced|persistent)$", "balanced or persistent");
static PROTOCOL: Pattern = Pattern::new(
    "^(AUTO_HTTP|FCGI|GRPC|GRPCS|HTTP|HTTPS)$",
    "HTTP, HTTPS, AUTO_HTTP, GRPC, GRPCS or FCGI",
);
static SAME_SITE: Pattern = Pattern::new("^(None|Lax|Strict)$", "None, Lax or Strict");
static HTTP_VERSION: Pattern = Pattern::new("^1[.][01]$", "1.0 or 1.1");
static SECONDS: Pattern = Pattern::new("^[0-9]{1,5}s?$", "seconds, of at most five digits");
static AGE: Pattern = Pattern::new("^[0-9]{1,9}$", "seconds, of at most nine digits");
static THOUSANDS: Pattern = Pattern::new("^[0-9]{1,4}$", "a number of at most four digits");
static MILLIONS: Pattern = Pattern::new("^[0-9]{1,7}$", "a number of at most seven digits");
static FACTOR: Pattern = Pattern::new("^[1-9][0-9]{0,2}$", "a number from 1 to 999");
static BUFFERS: Pattern = Pattern::new("^([4-9]|1[0-6])$", "a number from 4 to 16");
static BUFFER_SIZE: Pattern = Pattern::new("^[1-9][0-9]{0,2}[kK]$", "a size from 1k to 999k");
static BODY_BUFFER: Pattern = Pattern::new(
    "^([1-9][0-9]{3,6}|[1-9][0-9]{0,3}[kK]|([1-9]|1[0-6])[mM])$",
    "a size from 1000 bytes to 16m, such as 8k",
);
static BODY_SIZE: Pattern = Pattern::new(
    "^([0-9]{1,10}|[0-9]{1,5}[kKmMgG])$",
    "a size such as 8m, or 0 for no limit",
);
static NETWORKS: Pattern = Pattern::new(
    "^[0-9A-Fa-f.:/]+( ?, ?[0-9A-Fa-f.:/]+)*$",
    "addresses and networks, separated by commas, of at most 1000 characters",
);
static LIST: Pattern = Pattern::new(
    "^[A-Za-z0-9._:/*, -]+$",
    "at most 1000 letters, digits, spaces and . _ : / * , -",
);
static REWRITE: Pattern = Pattern::limited(
    "^/[A-Za-z0-9/._~-]*([$][0-9][A-Za-z0-9/._~-]*)*$",
    &[],
    256,
    "a path of letters, digits and / . _ ~ -, with $1 to $9 for parts of the requested one",
);

/// The settings without their domain, and their values.
pub static SETTINGS: &[(&str, &Pattern)] = &[
    ("affinity", &AFFINITY),
    ("affinity-mode", &AFFINITY_MODE),
    ("app-root", &PATH),
    ("backend-protocol", &PROTOCOL),
    ("canary", &FLAG),
    ("canary-by-cookie", &WORD),
    ("canary-by-header", &WORD),
    ("canary-by-header-value", &WORD),
    ("canary-weight", &THOUSANDS),
    ("canary-weight-total", &THOUSANDS),
    ("client-body-buffer-size", &BODY_BUFFER),
    ("cors-allow-credentials", &FLAG),
    ("cors-allow-headers", &LIST),
    ("cors-allow-methods", &LIST),
    ("cors-allow-origin", &LIST),
    ("cors-expose-headers", &LIST),
    ("cors-max-age", &AGE),
    ("denylist-source-range", &NETWORKS),
    ("enable-cors", &FLAG),
    ("force-ssl-redirect", &FLAG),
    ("limit-burst-multiplier", &FACTOR),
    ("limit-connections", &THOUSANDS),
    ("limit-rate", &MILLIONS),
    ("limit-rate-after", &MILLIONS),
    ("limit-rpm", &MILLIONS),
    ("limit-rps", &MILLIONS),
    ("proxy-body-size", &BODY_SIZE),
    ("proxy-buffer-size", &BUFFER_SIZE),
    ("proxy-buffering", &SWITCH),
    ("proxy-buffers-number", &BUFFERS),
    ("proxy-connect-timeout", &SECONDS),
    ("proxy-http-version", &HTTP_VERSION),
    ("proxy-next-upstream-timeout", &SECONDS),
    ("proxy-next-upstream-tries", &THOUSANDS),
    ("proxy-read-timeout", &SECONDS),
    ("proxy-request-buffering", &SWITCH),
    ("proxy-send-timeout", &SECONDS),
    ("rewrite-target", &REWRITE),
    ("service-upstream", &FLAG),
    ("session-cookie-max-age", &AGE),
    ("session-cookie-name", &WORD),
    ("session-cookie-samesite", &SAME_SITE),
    ("ssl-redirect", &FLAG),
    ("use-regex", &FLAG),
    ("whitelist-source-range", &NETWORKS),
];

/// What the value of an annotation may be, if it is a setting.
pub fn pattern(key: &str) -> Option<&'static Pattern> {
    let name = key.strip_prefix(NGINX)?;
    let (_, pattern) = SETTINGS.iter().find(|(known, _)| *known == name)?;
    Some(*pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translation::pattern::assert_usable;

    #[test]
    fn settings_are_usable_and_sorted() {
        assert!(SETTINGS.is_sorted_by_key(|(name, _)| *name));
        for (_, pattern) in SETTINGS {
            assert_usable(pattern);
            assert!(pattern.max_length <= 1000);
        }
        for key in [USE_REGEX, REWRITE_TARGET, SOURCES, DENIED_SOURCES] {
            assert!(pattern(key).is_some(), "{key}");
        }
    }

    #[test]
    fn values_that_nginx_does_not_load_are_denied() {
        for (name, good, bad) in [
            ("app-root", &["/app"][..], &["/$host", "app", ""][..]),
            ("backend-protocol", &["HTTPS"], &["HTTP2", "https;"]),
            ("canary-weight", &["0", "50"], &["-1", "50%", "1e3"]),
            (
                "client-body-buffer-size",
                &["8k", "1000", "1M"],
                &["0", "8g", "17m", "8 k"],
            ),
            (
                "cors-allow-origin",
                &["https://*.example.com, http://a:8080"],
                &["https://a\" always;", "(a"],
            ),
            ("limit-burst-multiplier", &["1", "20"], &["0", "1000"]),
            ("limit-connections", &["0", "9999"], &["65536"]),
            (
                "proxy-body-size",
                &["0", "100m", "10485760"],
                &["", "100mb", "999999g", "-1"],
            ),
            ("proxy-buffer-size", &["4k", "128k"], &["0", "0k", "1m", "4096000k"]),
            ("proxy-buffering", &["on", "off"], &["yes", "true"]),
            ("proxy-buffers-number", &["4", "16"], &["0", "1", "3", "17", "1000000"]),
            ("proxy-http-version", &["1.1"], &["2", "1.2"]),
            ("proxy-read-timeout", &["3600", "60s"], &["999999", "1h", "-1", ""]),
            (
                "rewrite-target",
                &["/$2", "/v1/$1/$2"],
                &["/; return 200", "/$host", "$1", "/$", "/a\"b"],
            ),
            ("session-cookie-samesite", &["Lax"], &["Any"]),
            ("use-regex", &["true"], &["True", "yes"]),
            (
                "whitelist-source-range",
                &["192.0.2.0/24, 2001:db8::/32"],
                &["192.0.2.0/24;", "all", ""],
            ),
        ] {
            let pattern = pattern(&format!("{NGINX}{name}")).unwrap();
            for value in good {
                assert!(pattern.is_match(value), "{name}: {value}");
            }
            for value in bad {
                assert!(!pattern.is_match(value), "{name}: {value}");
            }
        }
    }
}
