//! An OIDC issuer for tests: over TLS, with keys of its own, and with the flows by which people sign in.
//!
//! It listens at an address of this machine that is not loopback: egress brokers connect to no other.

use crate::tls::{TlsListener, machine_address, server_certificate};
use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
    serve::Listener,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_runtime::locks::lock;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::task::JoinHandle;

/// Name of the only key.
const KEY: &str = "key-1";
/// Subject of the tokens that the flows give.
pub const SUBJECT: &str = "ada";
/// The client of the flows.
pub const CLIENT: &str = "berth";

/// What a user is asked for, as a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sign-ins that began with a device.
    pub devices: u32,
    /// Tokens by refresh tokens.
    pub refreshes: u32,
}

#[derive(Default)]
struct Memory {
    counts: Counts,
    /// Whether a code of a device was asked about once: the second time the user has confirmed it.
    asked: HashMap<String, bool>,
    /// Refresh tokens that are valid.
    refresh_tokens: Vec<String>,
    /// Challenge and nonce of each authorization code.
    codes: HashMap<String, (String, String)>,
    /// Seconds for which tokens of the flows are valid.
    lifetime: i64,
    /// What only the person and the issuer may know.
    secrets: Vec<String>,
    /// Whether errors repeat what was sent.
    repeats: bool,
    next: u32,
}

struct Inner {
    url: String,
    key: EcdsaKeyPair,
    memory: Mutex<Memory>,
}

/// An issuer that serves until it is dropped.
pub struct Issuer {
    /// Its URL.
    pub url: String,
    /// Certificate (PEM) that its server is verified with.
    pub ca_pem: String,
    inner: Arc<Inner>,
    server: JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn encode(part: &Value) -> String {
    URL_SAFE_NO_PAD.encode(part.to_string())
}

impl Inner {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }

    fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "kid": KEY, "typ": "JWT"});
        let text = format!("{}.{}", encode(&header), encode(claims));
        let signature = self.key.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn jwks(&self) -> Value {
        // An uncompressed point: 4, x, y.
        let point = self.key.public_key().as_ref();
        let (x, y) = point[1..].split_at(32);
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"keys": [{
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": KEY, "x": text(x), "y": text(y),
        }]})
    }

    fn discovery(&self) -> Value {
        let at = |path: &str| format!("{}{path}", self.url);
        json!({
            "issuer": self.url,
            "jwks_uri": at("/keys"),
            "authorization_endpoint": at("/authorize"),
            "token_endpoint": at("/token"),
            "device_authorization_endpoint": at("/device"),
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
            "scopes_supported": ["openid", "offline_access", "groups"],
        })
    }

    /// The answer with an ID token and a refresh token.
    fn tokens(&self, nonce: Option<&str>) -> Response {
        let mut memory = self.memory();
        memory.next += 1;
        let refresh_token = format!("refresh-{}", memory.next);
        memory.refresh_tokens = vec![refresh_token.clone()];
        let claims = json!({
            "iss": self.url, "aud": CLIENT, "sub": SUBJECT, "jti": memory.next, "nonce": nonce,
            "exp": Timestamp::now().as_second() + memory.lifetime,
        });
        let id_token = self.sign(&claims);
        memory.secrets.extend([id_token.clone(), refresh_token.clone()]);
        Json(json!({
            "access_token": "access", "token_type": "Bearer", "id_token": id_token, "refresh_token": refresh_token,
        }))
        .into_response()
    }

    /// The answer to a request with this body.
    fn refuse(&self, error: &str, body: &str) -> Response {
        let description = self.memory().repeats.then_some(body);
        let answer = json!({ "error": error, "error_description": description });
        (StatusCode::BAD_REQUEST, Json(answer)).into_response()
    }
}

fn read_form(body: &str) -> HashMap<String, String> {
    form_urlencoded::parse(body.as_bytes()).into_owned().collect()
}

async fn show_discovery(State(inner): State<Arc<Inner>>) -> Json<Value> {
    Json(inner.discovery())
}

async fn show_keys(State(inner): State<Arc<Inner>>) -> Json<Value> {
    Json(inner.jwks())
}

async fn begin_device(State(inner): State<Arc<Inner>>, body: String) -> Response {
    if read_form(&body).get("client_id").map(String::as_str) != Some(CLIENT) {
        return inner.refuse("invalid_client", &body);
    }
    let mut memory = inner.memory();
    memory.counts.devices += 1;
    memory.next += 1;
    let code = format!("device-{}", memory.next);
    memory.secrets.push(code.clone());
    memory.asked.insert(code.clone(), false);
    Json(json!({
        "device_code": code, "user_code": "ABCD-EFGH", "verification_uri": format!("{}/enter", inner.url),
        "expires_in": 300, "interval": 1,
    }))
    .into_response()
}

async fn give_tokens(State(inner): State<Arc<Inner>>, body: String) -> Response {
    let form = read_form(&body);
    let field = |name: &str| form.get(name).cloned().unwrap_or_default();
    let refuse = |error: &str| inner.refuse(error, &body);
    match field("grant_type").as_str() {
        "urn:ietf:params:oauth:grant-type:device_code" => {
            let asked = inner.memory().asked.insert(field("device_code"), true);
            match asked {
                Some(true) => inner.tokens(None),
                Some(false) => refuse("authorization_pending"),
                None => refuse("invalid_grant"),
            }
        }
        "refresh_token" => {
            let is_valid = {
                let mut memory = inner.memory();
                let is_valid = memory.refresh_tokens.contains(&field("refresh_token"));
                memory.counts.refreshes += u32::from(is_valid);
                is_valid
            };
            if is_valid {
                inner.tokens(None)
            } else {
                refuse("invalid_grant")
            }
        }
        "authorization_code" => {
            inner.memory().secrets.push(field("code_verifier"));
            let found = inner.memory().codes.remove(&field("code"));
            let Some((challenge, nonce)) = found else {
                return refuse("invalid_grant");
            };
            let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, field("code_verifier").as_bytes());
            if URL_SAFE_NO_PAD.encode(digest.as_ref()) == challenge {
                inner.tokens(Some(&nonce))
            } else {
                refuse("invalid_grant")
            }
        }
        _ => refuse("unsupported_grant_type"),
    }
}

impl Issuer {
    /// Starts an issuer on a free port.
    pub async fn start() -> Self {
        let address = machine_address();
        let (ca_pem, leaf) = server_certificate(address);
        let listener = TlsListener::bind(SocketAddr::from((address, 0)), &leaf).await;
        let url = format!("https://{}", listener.local_addr().unwrap());
        let inner = Arc::new(Inner {
            url: url.clone(),
            key: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap(),
            memory: Mutex::new(Memory {
                lifetime: 3600,
                ..Memory::default()
            }),
        });
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(show_discovery))
            .route("/keys", get(show_keys))
            .route("/device", post(begin_device))
            .route("/token", post(give_tokens))
            .with_state(Arc::clone(&inner));
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self {
            url,
            ca_pem,
            inner,
            server,
        }
    }

    /// The claims of a token for a user that is valid for an hour.
    pub fn claims(&self, subject: &str, groups: &[&str]) -> Value {
        let now = Timestamp::now().as_second();
        json!({"iss": self.url, "aud": CLIENT, "sub": subject, "groups": groups, "iat": now, "exp": now + 3600})
    }

    /// A token with exactly these claims, signed with the issuer's key.
    pub fn sign(&self, claims: &Value) -> String {
        self.inner.sign(claims)
    }

    /// A token for a user.
    pub fn token(&self, subject: &str, groups: &[&str]) -> String {
        self.sign(&self.claims(subject, groups))
    }

    /// What users were asked for.
    pub fn counts(&self) -> Counts {
        self.inner.memory().counts
    }

    /// Sets for how many seconds tokens of the flows are valid from now on.
    pub fn set_lifetime(&self, seconds: i64) {
        self.inner.memory().lifetime = seconds;
    }

    /// Accepts no refresh token that was given until now.
    pub fn revoke_refresh_tokens(&self) {
        self.inner.memory().refresh_tokens.clear();
    }

    /// What only the person and the issuer may know: tokens, codes and verifiers so far.
    pub fn secrets(&self) -> Vec<String> {
        self.inner.memory().secrets.clone()
    }

    /// Lets errors repeat what was sent from now on.
    pub fn repeat_in_errors(&self) {
        self.inner.memory().repeats = true;
    }

    /// Does what a user does who opens the page of a sign-in and confirms it: returns where the issuer sends the browser.
    ///
    /// # Panics
    /// The page is not one of this issuer for the client of the tests, with PKCE.
    pub fn authorize(&self, page: &str) -> String {
        let query = page.strip_prefix(&format!("{}/authorize?", self.url)).expect(page);
        let fields = read_form(query);
        assert_eq!(fields["client_id"], CLIENT);
        assert_eq!(fields["response_type"], "code");
        assert_eq!(fields["code_challenge_method"], "S256");
        let mut memory = self.inner.memory();
        memory.next += 1;
        let code = format!("code-{}", memory.next);
        memory.secrets.push(code.clone());
        let kept = (fields["code_challenge"].clone(), fields["nonce"].clone());
        memory.codes.insert(code.clone(), kept);
        format!("{}?code={code}&state={}", fields["redirect_uri"], fields["state"])
    }
}
