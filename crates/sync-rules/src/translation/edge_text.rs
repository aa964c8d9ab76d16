//! Texts that controllers at the edge of the host (Ingress controllers, gateways) get from tenants. Such a controller makes
//! one configuration of the objects of all tenants: a text that breaks it stops it from loading any change for anybody.
//!
//! | text | rule |
//! |---|---|
//! | paths | the characters that RFC 3986 allows in a path, without those that have a meaning in regular expressions or in configuration files (`( ) * + $ ; '`), because controllers use paths in both |
//! | regular expressions | a subset that all engines read in the same way: letters, digits, `.`, escapes, plain classes, groups without groups in them. What is repeated has no repetition in it, and few repetitions and alternatives bound the steps of an engine that backtracks |
//! | names of headers that filters change | letters, digits and `. _ ~ -`, and none that says where a message ends or what becomes of its connection (`Content-Length`, `Transfer-Encoding`, `Connection`, …); in requests neither `Host` nor `Expect` |
//! | values of headers | printable ASCII without characters that start variables (`$`, `%`), quote or escape |

use super::pattern::Pattern;

macro_rules! class_item {
    () => {
        r"a-z|A-Z|a-f|A-F|0-9|[\\][dws]|[A-Za-z0-9_/~%]"
    };
}

macro_rules! atom {
    () => {
        concat!(
            // A character, or an escape.
            r"(?:[A-Za-z0-9/_~%!&=:@,.-]|[\\][dws.+*?()/$-]",
            // A class. It does not start with a period: PCRE reads `[.a.]` as a collating element.
            r"|\[(?:",
            class_item!(),
            r"|\^(?:[.]|",
            class_item!(),
            r"))(?:[.]|",
            class_item!(),
            r")*-?\])",
            // How often.
            r"(?:[*+][?]?|[?])?"
        )
    };
}

macro_rules! elements {
    () => {
        concat!("(?:", atom!(), r"|[(](?:[?]:)?(?:", atom!(), r"|[|$])*[)][?]?)*[$]?$")
    };
}

/// Headers that say how long a message is, or what becomes of its connection: gateways write them, and one that is written twice lets a
/// client's message end where the gateway and the backend do not agree. In any case of letters, which flags of expressions cannot say.
macro_rules! framing {
    () => {
        concat!(
            "[Cc][Oo][Nn][Tt][Ee][Nn][Tt]-[Ll][Ee][Nn][Gg][Tt][Hh]",
            "|[Tt][Rr][Aa][Nn][Ss][Ff][Ee][Rr]-[Ee][Nn][Cc][Oo][Dd][Ii][Nn][Gg]",
            "|[Cc][Oo][Nn][Nn][Ee][Cc][Tt][Ii][Oo][Nn]",
            "|[Pp][Rr][Oo][Xx][Yy]-[Cc][Oo][Nn][Nn][Ee][Cc][Tt][Ii][Oo][Nn]",
            "|[Kk][Ee][Ee][Pp]-[Aa][Ll][Ii][Vv][Ee]",
            "|[Tt][Ee]",
            "|[Tt][Rr][Aa][Ii][Ll][Ee][Rr]",
            "|[Uu][Pp][Gg][Rr][Aa][Dd][Ee]"
        )
    };
}

/// More than two unbounded repetitions, or more than eight choices of any kind.
const TOO_MANY_CHOICES: &[&str] = &["[*+](?:.*[*+]){2}", "[*+?|](?:.*[*+?|]){8}"];

/// A path.
pub static PATH: Pattern = Pattern::limited(
    r"^/(?:[A-Za-z0-9/._~!&=:@,-]|%[0-9A-Fa-f]{2})*$",
    &[],
    256,
    "a path of at most 256 characters that starts with /, of letters, digits, / . _ ~ ! & = : @ , - and %XX",
);
/// A path that takes the place of another, or of its beginning; it may be empty.
pub static NEW_PATH: Pattern = Pattern::limited(
    r"^(?:/(?:[A-Za-z0-9/._~!&=:@,-]|%[0-9A-Fa-f]{2})*)?$",
    &[],
    256,
    "a path of at most 256 characters that starts with /, of letters, digits, / . _ ~ ! & = : @ , - and %XX",
);
/// A regular expression for paths.
pub static PATH_EXPRESSION: Pattern = Pattern::limited(
    concat!("^/", elements!()),
    TOO_MANY_CHOICES,
    256,
    "a regular expression of at most 256 characters that starts with /, of letters, digits, . and escapes, classes such as [a-z0-9] \
     and groups without groups in them, with at most two * or +",
);
/// A regular expression for other texts.
pub static EXPRESSION: Pattern = Pattern::limited(
    concat!("^[\\^]?", elements!()),
    TOO_MANY_CHOICES,
    256,
    "a regular expression of at most 256 characters, of letters, digits, . and escapes, classes such as [a-z0-9] and groups without \
     groups in them, with at most two * or +",
);
/// The name of a header, a query parameter or a cookie.
pub static NAME: Pattern = Pattern::limited("^[A-Za-z0-9._~-]+$", &[], 256, "a name of letters, digits and . _ ~ -");
/// The name of a header that a filter changes in requests.
pub static REQUEST_HEADER: Pattern = Pattern::limited(
    "^[A-Za-z0-9._~-]+$",
    &[concat!(
        "^(?:",
        framing!(),
        "|[Hh][Oo][Ss][Tt]|[Ee][Xx][Pp][Ee][Cc][Tt])$"
    )],
    256,
    "a name of letters, digits and . _ ~ -, besides Host, Expect and what a gateway writes itself: Content-Length, Transfer-Encoding, \
     Connection, Proxy-Connection, Keep-Alive, TE, Trailer and Upgrade",
);
/// The name of a header that a filter changes in responses.
pub static RESPONSE_HEADER: Pattern = Pattern::limited(
    "^[A-Za-z0-9._~-]+$",
    &[concat!("^(?:", framing!(), ")$")],
    256,
    "a name of letters, digits and . _ ~ -, besides what a gateway writes itself: Content-Length, Transfer-Encoding, Connection, \
     Proxy-Connection, Keep-Alive, TE, Trailer and Upgrade",
);
/// The value of a header or a query parameter.
pub static HEADER_VALUE: Pattern = Pattern::new(
    r"^[A-Za-z0-9 !#&\x27()*+,./:;<=>?@\[\]^_|~-]*$",
    "at most 1000 printable ASCII characters, without quotation marks, $ % { } ` and backslashes",
);
/// The name of a gRPC service or method.
pub static GRPC_NAME: Pattern = Pattern::new("^[A-Za-z0-9._]+$", "a name of letters, digits, . and _");
/// The name of a host, or of all hosts below one.
pub static HOSTNAME: Pattern = Pattern::limited(
    r"^([*][.])?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
    &[],
    253,
    "a DNS name in lower case",
);
/// A duration of the Gateway API.
pub static DURATION: Pattern = Pattern::new(
    "^([0-9]{1,5}(h|m|s|ms)){1,4}$",
    "a duration such as 10s, 500ms or 1h30m",
);
/// An origin, a method or a header in rules for requests across origins.
pub static CORS: Pattern = Pattern::limited("^[A-Za-z0-9._:/*-]+$", &[], 253, "letters, digits and . _ : / * -");
/// The scheme of a redirect.
pub static SCHEME: Pattern = Pattern::new("^https?$", "http or https");

/// Numbers of ports.
pub const PORTS: (i64, i64) = (1, 65_535);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translation::pattern::assert_usable;
    use proptest::prelude::*;

    #[test]
    fn patterns_are_usable_on_both_sides() {
        for pattern in [
            &PATH,
            &NEW_PATH,
            &PATH_EXPRESSION,
            &EXPRESSION,
            &NAME,
            &REQUEST_HEADER,
            &RESPONSE_HEADER,
            &HEADER_VALUE,
            &GRPC_NAME,
            &HOSTNAME,
            &DURATION,
            &CORS,
            &SCHEME,
        ] {
            assert_usable(pattern);
        }
    }

    #[test]
    fn paths_have_no_meaning_in_a_configuration() {
        for good in ["/", "/api/v1.0/users_of~me", "/a-b/%7Euser", "/@me,you/a=b&c:d!"] {
            assert!(PATH.is_match(good), "{good}");
        }
        for bad in [
            "", "api", "/a b", "/a;b", "/a{b", "/a}", "/a\"b", "/a'b", "/a#b", "/a$b", "/a\\b", "/a\n", "/(a", "/a)",
            "/[a", "/a*", "/a+", "/a|b", "/a^", "/a?b", "/%zz", "/%2", "/ä", "/a`b",
        ] {
            assert!(!PATH.is_match(bad), "{bad:?}");
        }
        assert!(!PATH.is_match(&format!("/{}", "a".repeat(256))));
        assert!(NEW_PATH.is_match("") && NEW_PATH.is_match("/a") && !NEW_PATH.is_match("a"));
    }

    #[test]
    fn expressions_of_common_charts_are_allowed() {
        for good in [
            "/",
            "/api(/|$)(.*)",
            "/api/(.*)",
            "/()(.*)",
            "/foo/bar/[^/]+/[A-Z0-9-]+",
            "/(?:v1|v2)/users",
            r"/files/\d+\.(?:png|jpe?g)$",
            "/a.*?b",
            r"/[\w-]+/x",
            "/[^.]+",
        ] {
            assert!(PATH_EXPRESSION.is_match(good), "{good}");
        }
        assert!(EXPRESSION.is_match("^v[0-9]+$") && !EXPRESSION.is_match("a b"));
    }

    #[test]
    fn broken_and_expensive_expressions_are_denied() {
        for bad in [
            // Broken in one engine or in all.
            "/(",
            "/)",
            "/[",
            "/[a",
            "/a]",
            "/(a",
            "/a)b",
            "/((a))",
            "/*",
            "/a**",
            "/a{2",
            "/(?",
            "/(?i)a",
            "/(?=a)",
            "/(?<n>a)",
            "/[z-a]",
            "/[.a.]",
            "/[[:foo:]]",
            "/[]",
            r"/a\",
            r"/\1",
            r"/\Q",
            r"/\x",
            "/|*",
            // Not only an expression.
            "/a;",
            "/a\"",
            "/a'",
            "/a b",
            "/a\nb",
            "/a{}",
            "/a#",
            "/a`",
            // Repetitions in repetitions, and too many choices.
            "/(a*)*",
            "/(a+)+$",
            "/(a|aa)+$",
            "/(.*a){9}",
            "/.*.*.*x",
            "/a?a?a?a?a?a?a?a?a?x",
            "/(a|b|c|d|e|f|g|h|i|j)",
        ] {
            assert!(!PATH_EXPRESSION.is_match(bad), "{bad:?}");
        }
    }

    proptest! {
        /// What passes as an expression can be compiled, whatever it is made of, and so can a path that a controller takes
        /// for one.
        #[test]
        fn what_passes_is_an_expression(text in r"/[a-z0-9/.*+?()|$^\\\[\]{}:=<-]{0,12}") {
            if PATH_EXPRESSION.is_match(&text) || PATH.is_match(&text) {
                let compiled = regex::bytes::RegexBuilder::new(&text).unicode(false).build();
                prop_assert!(compiled.is_ok(), "{}", text);
            }
        }
    }

    #[test]
    fn values_of_headers_stay_on_their_line() {
        for good in ["", "max-age=31536000; includeSubDomains", "default-src 'self'", "a, b"] {
            assert!(HEADER_VALUE.is_match(good), "{good}");
        }
        for bad in [
            "a\r\nX-Admin: 1",
            "a\nb",
            "\0",
            "%REQ(x)%",
            "100%",
            "$host",
            "\"",
            "\\",
            "{",
            "ä",
        ] {
            assert!(!HEADER_VALUE.is_match(bad), "{bad:?}");
        }
        for bad in ["", "a b", "a:b", "a\r", "x\"", "ä"] {
            assert!(!NAME.is_match(bad), "{bad:?}");
        }
    }

    #[test]
    fn headers_that_frame_messages_are_left_to_the_gateway() {
        let both = [&REQUEST_HEADER, &RESPONSE_HEADER];
        for name in [
            "Content-Length",
            "content-length",
            "TRANSFER-ENCODING",
            "Connection",
            "Proxy-Connection",
            "keep-Alive",
            "te",
            "Trailer",
            "UPGRADE",
        ] {
            assert!(both.iter().all(|pattern| !pattern.is_match(name)), "{name}");
        }
        for name in ["host", "Host", "EXPECT"] {
            assert!(
                !REQUEST_HEADER.is_match(name) && RESPONSE_HEADER.is_match(name),
                "{name}"
            );
        }
        for name in [
            "X-Header-Set",
            "X-Forwarded-Host",
            "Content-Type",
            "Content-Length-Limit",
            "Upgrade-Insecure-Requests",
            "X-Te",
            "teapot",
            "Server",
        ] {
            assert!(both.iter().all(|pattern| pattern.is_match(name)), "{name}");
        }
        assert!(
            both.iter()
                .all(|pattern| !pattern.is_match("a\r") && !pattern.is_match(""))
        );
    }

    #[test]
    fn durations_and_names_of_hosts() {
        for good in ["10s", "1h30m", "500ms", "0s"] {
            assert!(DURATION.is_match(good), "{good}");
        }
        for bad in ["", "10", "-1s", "1.5s", "1000000h"] {
            assert!(!DURATION.is_match(bad), "{bad}");
        }
        for good in ["a", "app.example.com", "*.example.com"] {
            assert!(HOSTNAME.is_match(good), "{good}");
        }
        for bad in ["", "*", "a_b", "A.example.com", "-a", "a b", "a.*.b"] {
            assert!(!HOSTNAME.is_match(bad), "{bad}");
        }
    }
}
