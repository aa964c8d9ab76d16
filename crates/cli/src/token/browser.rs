//! Signing in in a browser on this machine: authorization code with PKCE (RFC 7636), back to a port of loopback (RFC 8252).

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_api::LoopbackUrl;
use form_urlencoded::Serializer;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::cache::Tokens;
use super::provider::{OAuthError, Provider, SignInError};
use crate::output::print_text;

/// Time within which the user must sign in.
const LONGEST: Duration = Duration::from_secs(300);
/// Time within which a browser must send its request, and its largest size in bytes.
const REQUEST: Duration = Duration::from_secs(5);
const MAX_REQUEST: usize = 16 * 1024;
/// Connections that are served at the same time.
const MAX_CONNECTIONS: usize = 64;
const DONE: &str = "You are signed in. You can close this page.";
const FAILED: &str = "You are not signed in. The terminal says why.";

/// What the request of the browser has.
struct Expected<'a> {
    path: &'a str,
    state: &'a str,
    issuer: &'a str,
}

/// What a request to the port is.
enum Callback {
    /// The browser comes back with a code.
    Code(String),
    /// The issuer refuses.
    Refused(OAuthError),
    /// Something else, such as the icon of the page, or a request of somebody else.
    Other,
}

pub(super) async fn sign_in(provider: &Provider, redirect: LoopbackUrl) -> Result<Tokens, SignInError> {
    let endpoint = provider
        .authorization_endpoint()
        .ok_or_else(|| SignInError::Provider("the issuer has no browser flow; use --flow device".into()))?;
    let listening = |error: std::io::Error| {
        SignInError::Local(format!(
            "cannot listen for {redirect}: {error}; set another --redirect-url"
        ))
    };
    // Also for localhost: a browser that tries ::1 first comes here next. A program that answers there gets a code that is worth nothing
    // without the verifier.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, redirect.port().unwrap_or(0)))
        .await
        .map_err(listening)?;
    let port = listener.local_addr().map_err(listening)?.port();
    let redirect = redirect.with_port(port);
    let redirect_uri = redirect.to_string();
    let (state, nonce, verifier) = (random()?, random()?, random()?);
    let (scope, challenge) = (provider.scope(), challenge(&verifier));
    let url = authorization_url(
        endpoint,
        &[
            ("response_type", "code"),
            ("client_id", provider.client_id()),
            ("redirect_uri", redirect_uri.as_str()),
            ("scope", scope.as_str()),
            ("state", state.as_str()),
            ("nonce", nonce.as_str()),
            ("code_challenge", challenge.as_str()),
            ("code_challenge_method", "S256"),
        ],
    );
    print_text(format_args!(
        "Sign in in your browser. If it does not open, open this page on this machine:\n{url}"
    ));
    open(&url);
    let expected = Expected {
        path: redirect.path(),
        state: &state,
        issuer: provider.issuer(),
    };
    let code = tokio::time::timeout(LONGEST, wait_for_code(&listener, &expected))
        .await
        .map_err(|_| SignInError::Local("nobody signed in within 5 minutes; try again".into()))??;
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", code.as_str()),
        ("redirect_uri", redirect_uri.as_str()),
        ("code_verifier", verifier.as_str()),
    ];
    Ok(provider.ask_for_tokens(&fields, Some(&nonce)).await??)
}

/// 256 random bits as text.
fn random() -> Result<String, SignInError> {
    let mut bytes = [0; 32];
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let filled = provider.secure_random.fill(&mut bytes);
    filled.map_err(|_| SignInError::Local("this machine gives no random numbers".into()))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// What the issuer gets before it gets the verifier.
fn challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(verifier))
}

fn authorization_url(endpoint: &str, fields: &[(&str, &str)]) -> String {
    let mut query = Serializer::new(String::new());
    query.extend_pairs(fields);
    let separator = if endpoint.contains('?') { '&' } else { '?' };
    format!("{endpoint}{separator}{}", query.finish())
}

/// Opens a page, if there is a program for it. The user has seen the address.
#[allow(
    clippy::zombie_processes,
    reason = "this process ends soon, and the program may run longer"
)]
fn open(url: &str) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let started = Command::new(program)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    drop(started);
}

/// Serves the port until the browser comes back. Connections are served at the same time: browsers open some in which they send nothing, and
/// other programs of this machine may connect as well.
async fn wait_for_code(listener: &TcpListener, expected: &Expected<'_>) -> Result<String, SignInError> {
    let mut connections = FuturesUnordered::new();
    loop {
        let callback = tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                let (stream, _) =
                    accepted.map_err(|error| SignInError::Local(format!("cannot serve the browser: {error}")))?;
                connections.push(serve(stream, expected));
                continue;
            }
            Some(callback) = connections.next() => callback,
        };
        match callback {
            Callback::Code(code) => return Ok(code),
            Callback::Refused(error) => return Err(error.into()),
            Callback::Other => {}
        }
    }
}

/// Reads one request and answers it. Whatever is wrong with one connection, another may be the browser's.
async fn serve(mut stream: TcpStream, expected: &Expected<'_>) -> Callback {
    let Ok(Ok(request)) = tokio::time::timeout(REQUEST, read_request(&mut stream)).await else {
        return Callback::Other;
    };
    let callback = read_callback(&request, expected);
    let (status, text) = match &callback {
        Callback::Code(_) => ("200 OK", DONE),
        Callback::Refused(_) => ("200 OK", FAILED),
        Callback::Other => ("404 Not Found", ""),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nReferrer-Policy: no-referrer\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    // The answer is only for the user's eyes: what matters has been read.
    let write = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(REQUEST, write).await;
    callback
}

async fn read_request(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 2048];
    while bytes.len() < MAX_REQUEST && !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..count]);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a request to the port. Without the state of this sign-in it is somebody else's.
fn read_callback(request: &str, expected: &Expected<'_>) -> Callback {
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (Some("GET"), Some(target)) = (words.next(), words.next()) else {
        return Callback::Other;
    };
    let Some((path, query)) = target.split_once('?') else {
        return Callback::Other;
    };
    let find = |name: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    // RFC 9207: the issuer may say that it is the one that was asked.
    if path != expected.path
        || find("state").as_deref() != Some(expected.state)
        || find("iss").is_some_and(|iss| iss != expected.issuer)
    {
        return Callback::Other;
    }
    if let Some(error) = find("error") {
        return Callback::Refused(OAuthError {
            error,
            error_description: find("error_description"),
        });
    }
    find("code").map_or(Callback::Other, Callback::Code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected<'_> = Expected {
        path: "/callback",
        state: "s-1",
        issuer: "https://id.example.com",
    };

    fn read(target: &str) -> Callback {
        read_callback(&format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"), &EXPECTED)
    }

    #[test]
    fn the_browser_comes_back_with_a_code() {
        let code = |target: &str| match read(target) {
            Callback::Code(code) => Some(code),
            _ => None,
        };
        assert_eq!(code("/callback?code=a%2Bb&state=s-1").as_deref(), Some("a+b"));
        assert_eq!(
            code("/callback?state=s-1&code=c&iss=https%3A%2F%2Fid.example.com").as_deref(),
            Some("c")
        );
        for other in [
            "/",
            "/favicon.ico",
            "/callback",
            "/callback?code=c",
            "/callback?code=c&state=s-2",
            "/callback?code=c&state=s-1&iss=https://evil.example.com",
            "/callback?state=s-1",
            "/other?code=c&state=s-1",
        ] {
            assert!(matches!(read(other), Callback::Other), "{other}");
        }
        let posted = read_callback("POST /callback?code=c&state=s-1 HTTP/1.1\r\n\r\n", &EXPECTED);
        assert!(matches!(posted, Callback::Other));
    }

    #[tokio::test]
    async fn silent_connections_do_not_delay_the_browser() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(address.ip().is_loopback());
        // As many as are served, but one.
        let mut silent = Vec::new();
        for _ in 1..MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let browser = async {
            for (target, expected) in [
                ("/callback?code=x&state=other", "404"),
                ("/callback?code=c&state=s-1", "200"),
            ] {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{answer}");
                assert!(!answer.contains("s-1"), "{answer}");
            }
        };
        let signed_in = async { tokio::join!(wait_for_code(&listener, &EXPECTED), browser) };
        // The first of them is given up after a while.
        let mut rest = [0];
        let code = tokio::select! {
            biased;
            (code, ()) = signed_in => code,
            end = silent[0].read(&mut rest) => panic!("a silent connection was waited for: {end:?}"),
        };
        assert_eq!(code.unwrap(), "c");
    }

    #[test]
    fn a_refusal_is_shown() {
        let Callback::Refused(error) = read("/callback?state=s-1&error=access_denied&error_description=not+you") else {
            panic!("not refused");
        };
        let message = SignInError::from(error).to_string();
        assert!(message.ends_with("not you (access_denied)"), "{message}");
    }

    #[test]
    fn challenges_are_those_of_the_rfc() {
        // RFC 7636, appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(challenge(verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }

    #[test]
    fn queries_are_appended_and_escaped() {
        let fields = [
            ("scope", "openid groups"),
            ("redirect_uri", "http://127.0.0.1:1/callback"),
        ];
        assert_eq!(
            authorization_url("https://a/auth", &fields),
            "https://a/auth?scope=openid+groups&redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fcallback"
        );
        assert!(authorization_url("https://a/auth?tenant=x", &fields).starts_with("https://a/auth?tenant=x&scope="));
    }
}
