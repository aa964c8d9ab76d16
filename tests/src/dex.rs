//! Dex, a real OIDC server: the program of upstream, with the configuration of the documentation and people of its own.
//!
//! It listens at an address of this machine that is not loopback, as [`crate::issuer::Issuer`] does.

use crate::{
    helm::{cache, existing},
    page::find_yaml,
    processes::{ending_with_parent, spawn_logged},
    tls::{machine_address, server_certificate},
    wait::{SOON, until},
};
use axum::body::{Body, to_bytes};
use berth_pki::read_certificates;
use berth_process::{free_port, write_atomic};
use http::{Request, StatusCode, header};
use kube::{Client, Config, client};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    net::SocketAddr,
};
use tempfile::TempDir;
use tokio::process::Child;

/// Dex in `hack/kubernetes/versions`.
const COMPONENT: &str = "dex";
const VERSION: &str = "v2.41.1";
/// The page of the documentation with its configuration.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guides/sign-in.md");
/// The client of the page.
pub const CLIENT: &str = "vision";
/// A client that is not on the page.
pub const OTHER_CLIENT: &str = "other";
/// Who signs in with a password, and has no groups: Dex keeps none for such people.
pub const WITH_PASSWORD: &str = "ada@example.com";
const PASSWORD: &str = "password";
/// Its hash, as Dex's own examples have it: Dex takes no cheaper ones.
const PASSWORD_HASH: &str = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W";
/// Whom Dex's connector for tests signs in, without asking anything.
pub const OF_CONNECTOR: &str = "kilgore@kilgore.trout";
/// Its only group.
pub const GROUP: &str = "authors";
/// Identifiers of connectors: that for tests, and Dex's own for passwords.
const TEST_CONNECTOR: &str = "test";
const PASSWORDS: &str = "local";
/// Pages of a sign-in at most.
const MOST_PAGES: usize = 12;
const MAX_PAGE: usize = 1 << 20;
const LOG: &str = "log";

/// Dex. It ends with this value, and with the process that started it.
pub struct Dex {
    /// URL of the issuer.
    pub url: String,
    /// Certificate (PEM) that it is verified with.
    pub ca_pem: String,
    client: Client,
    folder: TempDir,
    _process: Child,
}

/// Where a sign-in ends.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// At a page of Dex.
    Page(String),
    /// At another address, to which Dex sends the browser.
    Elsewhere(String),
}

/// What a person does next: opens a page, or sends a form.
struct Step {
    url: String,
    form: Option<String>,
}

/// The YAML of the page about sign-in that has these words.
pub fn documented(words: &str) -> Value {
    let page = fs::read_to_string(PAGE).unwrap();
    let block = find_yaml(&page, words).unwrap_or_else(|| panic!("no YAML in {PAGE} has {words:?}"));
    serde_saphyr::from_str(block).unwrap()
}

impl Dex {
    /// Starts Dex with tokens that are valid for so long (`20s`), and waits until it answers.
    pub async fn start(lifetime: &str) -> Self {
        let address = machine_address();
        let server = SocketAddr::from((address, free_port().unwrap()));
        let url = format!("https://{server}");
        let folder = TempDir::with_prefix("berth-dex-").unwrap();
        let (ca_pem, leaf) = server_certificate(address);
        let file = |name: &str| folder.path().join(name);
        for (name, text) in [("tls.crt", &leaf.cert_pem), ("tls.key", &leaf.key_pem)] {
            write_atomic(&file(name), text.as_bytes(), 0o600).unwrap();
        }
        let mut config = documented("staticClients:");
        config["issuer"] = json!(url);
        config["storage"] = json!({"type": "memory"});
        config["web"] = json!({"https": server, "tlsCert": file("tls.crt"), "tlsKey": file("tls.key")});
        config["expiry"]["idTokens"] = json!(lifetime);
        config["connectors"] = json!([{"type": "mockCallback", "id": TEST_CONNECTOR, "name": "Test"}]);
        config["enablePasswordDB"] = json!(true);
        config["staticPasswords"] =
            json!([{"email": WITH_PASSWORD, "hash": PASSWORD_HASH, "username": "Ada", "userID": "1"}]);
        let clients = config["staticClients"].as_array_mut().unwrap();
        clients.push(json!({"id": OTHER_CLIENT, "name": "Another client", "public": true}));
        fs::write(file("config.yaml"), config.to_string()).unwrap();

        let program = existing(cache().join("bin").join(COMPONENT).join(VERSION).join(COMPONENT));
        let log = File::create(file(LOG)).unwrap();
        let mut server = ending_with_parent(&program);
        let process = spawn_logged(server.arg("serve").arg(file("config.yaml")), log);
        let mut client = Config::new(url.parse().unwrap());
        client.root_cert = Some(read_certificates(&ca_pem).unwrap());
        client.default_retry = false;
        let dex = Self {
            client: Client::try_from(client).unwrap(),
            url,
            ca_pem,
            folder,
            _process: process,
        };
        let discovery = format!("{}/.well-known/openid-configuration", dex.url);
        until("Dex answers", SOON, async || {
            match dex.send(&Step::open(&discovery)).await {
                Ok((StatusCode::OK, _, _)) => Ok(()),
                other => Err(format!("{other:?}; its log is\n{}", dex.log())),
            }
        })
        .await;
        dex
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default()
    }

    /// Does what a person does in a browser who opens a page of a sign-in: gives the code, chooses how to sign in, says who it is, and
    /// grants access.
    ///
    /// # Panics
    /// Dex shows an error.
    pub async fn sign_in(&self, page: &str, person: &str) -> End {
        let mut step = Step::open(page);
        for _ in 0..MOST_PAGES {
            let (status, location, text) = self.send(&step).await.unwrap();
            if let Some(location) = location {
                let url = self.absolute(&location);
                if !url.starts_with(&self.url) {
                    return End::Elsewhere(url);
                }
                step = Step::open(&url);
                continue;
            }
            assert!(status.is_success(), "{status}: {text}\nthe log is\n{}", self.log());
            match self.fill_in(&step.url, &text, person) {
                Some(next) => step = next,
                None => return End::Page(text),
            }
        }
        panic!("the sign-in has more than {MOST_PAGES} pages");
    }

    /// What a person does at a page; none if there is nothing to do.
    fn fill_in(&self, url: &str, text: &str, person: &str) -> Option<Step> {
        let form = |url: &str, fields: &[(&str, &str)]| {
            let form = form_urlencoded::Serializer::new(String::new())
                .extend_pairs(fields)
                .finish();
            Some(Step {
                url: self.absolute(url),
                form: Some(form),
            })
        };
        let action = || attribute(text, "<form", "action").unwrap();
        let field = |name: &str| attribute(text, &format!("name=\"{name}\""), "value").unwrap();
        if text.contains("name=\"user_code\"") {
            return form(&action(), &[("user_code", &field("user_code"))]);
        }
        if text.contains("name=\"password\"") {
            return form(&action(), &[("login", person), ("password", PASSWORD)]);
        }
        if text.contains("name=\"approval\"") {
            return form(url, &[("req", &field("req")), ("approval", &field("approval"))]);
        }
        let connector = if person == OF_CONNECTOR {
            TEST_CONNECTOR
        } else {
            PASSWORDS
        };
        let path = format!("/auth/{connector}?");
        let mut links = text.split("<a ").skip(1).filter_map(|link| attribute(link, "", "href"));
        let found = links.find(|url| url.starts_with(&path));
        found.map(|url| Step::open(&self.absolute(&url)))
    }

    fn absolute(&self, url: &str) -> String {
        if url.starts_with('/') {
            format!("{}{url}", self.url)
        } else {
            url.to_owned()
        }
    }

    /// The status, the `Location` and the text of the answer.
    async fn send(&self, step: &Step) -> Result<(StatusCode, Option<String>, String), String> {
        let path = step.url.strip_prefix(&self.url).expect("a page of Dex");
        let request = match &step.form {
            None => Request::get(path).body(client::Body::empty()),
            Some(form) => Request::post(path)
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(client::Body::from(form.clone().into_bytes())),
        };
        let answer = self
            .client
            .send(request.unwrap())
            .await
            .map_err(|error| error.to_string())?;
        let location = answer.headers().get(header::LOCATION);
        let location = location.map(|location| location.to_str().unwrap().to_owned());
        let status = answer.status();
        let body = to_bytes(Body::new(answer.into_body()), MAX_PAGE).await;
        let body = body.map_err(|error| error.to_string())?;
        Ok((status, location, String::from_utf8_lossy(&body).into_owned()))
    }
}

impl Step {
    fn open(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            form: None,
        }
    }
}

/// The value of the first attribute with this name behind some words of a page.
fn attribute(text: &str, words: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(words)?;
    let (_, rest) = rest.split_once(&format!("{name}=\""))?;
    let (value, _) = rest.split_once('"')?;
    Some(value.replace("&#43;", "+").replace("&amp;", "&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_a_browser_does() {
        let page =
            r#"<a href="/x"><form method="post" action="/login?a=1&amp;b=c&#43;d"><input name="req" value="7"/>"#;
        assert_eq!(attribute(page, "<form", "action").as_deref(), Some("/login?a=1&b=c+d"));
        assert_eq!(attribute(page, "name=\"req\"", "value").as_deref(), Some("7"));
        assert_eq!(attribute(page, "name=\"other\"", "value"), None);
    }

    #[test]
    fn the_documentation_has_both_sides_of_the_configuration() {
        assert_eq!(documented("staticClients:")["staticClients"][0]["id"], CLIENT);
        let tenant = documented("redirectURL:");
        assert_eq!(tenant["spec"]["authentication"]["kubeconfig"]["clientID"], CLIENT);
    }
}
