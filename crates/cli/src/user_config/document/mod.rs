//! A kubeconfig as a document: what Berth does not know in it stays as it is. Pure.

use berth_pki::kubeconfig::find_foreign_field;
use serde_json::{Map, Value, json};

/// Prefix of the contexts that `berth connect` makes; what follows is `<namespace>/<name>` of the tenant.
const PREFIX: &str = "berth/";
/// Name of the extension of such a context that remembers the context before it.
const EXTENSION: &str = "berth.dev/connect";
/// The lists of a kubeconfig.
const LISTS: [&str; 3] = ["clusters", "users", "contexts"];

/// How a tenant's API server is reached, if not as its own kubeconfig says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// URL.
    pub(crate) url: String,
    /// The name that the certificate of the API server is checked against.
    pub(crate) tls_name: String,
}

/// Name of the context of a tenant.
pub(crate) fn context_name(namespace: &str, name: &str) -> String {
    format!("{PREFIX}{namespace}/{name}")
}

/// Parses a kubeconfig. An empty text is an empty kubeconfig.
///
/// # Errors
/// It is not YAML, or not a mapping; the text says what is wrong, and quotes no line: there may be keys and tokens.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(json!({"apiVersion": "v1", "kind": "Config"}));
    }
    let document: Value = serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string())?;
    if document.is_object() {
        Ok(document)
    } else {
        Err("it is not a mapping".into())
    }
}

/// Why a kubeconfig of a tenant is not used, behind what it has.
const CHANGED: &str = "which Berth does not write, so somebody else changed the Secret: do not use it. Control writes it again within \
                       minutes; delete the Secret for it to do so at once";

/// Writes a kubeconfig of a tenant again, which must have nothing but what control writes. It comes out of a Secret in a namespace of the team, and
/// the one who uses it may be an administrator of the platform: a kubeconfig can run commands (`exec`), read files of this machine, and turn off the
/// checks of TLS. Nobody uses the text itself: parsers of other programs may find more in it than was checked. For that of kubectl, a mapping that is
/// merged in (`<<`) replaces the fields before it.
///
/// # Errors
/// It cannot be parsed, or it has something else: the text says what, and what to do.
pub(crate) fn rewrite_tenant(text: &str) -> Result<String, String> {
    render(&parse_tenant(text)?)
}

fn parse_tenant(text: &str) -> Result<Value, String> {
    // kubectl reads YAML 1.1, in which U+0085, U+2028 and U+2029 end a line, and so a comment. For this parser they are ordinary characters:
    // it would not see the fields behind them.
    if let Some(letter) = text.chars().find(|letter| !matches!(letter, ' '..='~' | '\n')) {
        return Err(format!("it has the character {letter:?}, {CHANGED}"));
    }
    let document = parse(text)?;
    check_tenant(&document)?;
    Ok(document)
}

fn check_tenant(document: &Value) -> Result<(), String> {
    if let Some(field) = find_foreign_field(document) {
        return Err(format!("it has the field {field}, {CHANGED}"));
    }
    let mut servers = document["clusters"].as_array().into_iter().flatten();
    if servers.any(|entry| {
        !entry["cluster"]["server"]
            .as_str()
            .is_some_and(|url| url.starts_with("https://"))
    }) {
        return Err("its server is no https:// URL, so somebody else changed the Secret: do not use it".into());
    }
    Ok(())
}

/// The text of a kubeconfig.
///
/// # Errors
/// The document cannot be written as YAML.
pub(crate) fn render(document: &Value) -> Result<String, String> {
    // Long base64 stays on one line, as people expect it in a kubeconfig.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(document, options).map_err(|error| error.to_string())
}

/// The context that kubectl uses.
pub(crate) fn current_context(document: &Value) -> Option<&str> {
    document["current-context"].as_str().filter(|name| !name.is_empty())
}

fn find<'a>(document: &'a Value, list: &str, name: &str) -> Option<&'a Value> {
    let entries = document[list].as_array()?;
    entries.iter().find(|entry| entry["name"] == name)
}

/// The context that was current before `berth connect` made this one.
fn previous_context<'a>(document: &'a Value, context: &str) -> Option<&'a str> {
    let extensions = find(document, "contexts", context)?["context"]["extensions"].as_array()?;
    let own = extensions.iter().find(|extension| extension["name"] == EXTENSION)?;
    own["extension"]["previousContext"].as_str()
}

/// The context of the host cluster: the current one, or the one that was current before `berth connect` switched to tenants.
///
/// # Errors
/// The current context is a tenant's and the one before is not known, or no longer exists; the text says what to do.
pub(crate) fn host_context(document: &Value) -> Result<Option<&str>, String> {
    let Some(current) = current_context(document) else {
        return Ok(None);
    };
    let mut context = current;
    // A chain is as long as there are contexts, at most: a longer one is a circle that somebody made.
    for _ in 0..=document["contexts"].as_array().map_or(0, Vec::len) {
        if !context.starts_with(PREFIX) {
            return Ok(Some(context));
        }
        match previous_context(document, context) {
            Some(previous) if find(document, "contexts", previous).is_some() => context = previous,
            _ => break,
        }
    }
    Err(format!(
        "the current context {current} is a tenant's; name the context of the host cluster with --context"
    ))
}

/// Kubeconfigs as kubectl merges them, as far as contexts are concerned: the first file that has a context, or says which is the
/// current one, decides.
pub(crate) fn merge_contexts(documents: &[Value]) -> Value {
    let mut contexts: Vec<Value> = Vec::new();
    for entry in documents
        .iter()
        .filter_map(|document| document["contexts"].as_array())
        .flatten()
    {
        if contexts.iter().all(|known| known["name"] != entry["name"]) {
            contexts.push(entry.clone());
        }
    }
    let current = documents.iter().find_map(current_context).unwrap_or_default();
    json!({"current-context": current, "contexts": contexts})
}

/// Adds the context of a tenant to `document`, or replaces it, and switches to it. `tenant` is the tenant's own kubeconfig. `elsewhere`
/// is the current context if this file does not set one and another does. A second call with the same arguments changes nothing.
///
/// # Errors
/// The tenant's kubeconfig lacks an entry.
pub(crate) fn add_context(
    document: &mut Value,
    context: &str,
    tenant: &Value,
    server: Option<&Server>,
    elsewhere: Option<&str>,
) -> Result<(), String> {
    let missing = |what: &str| format!("the tenant's kubeconfig has no {what}");
    let own = current_context(tenant).ok_or_else(|| missing("current context"))?;
    let own = &find(tenant, "contexts", own).ok_or_else(|| missing("such context"))?["context"];
    let entry = |list: &str, key: &str| {
        let name = own[key].as_str()?;
        Some(find(tenant, list, name)?[key].clone())
    };
    let mut cluster = entry("clusters", "cluster").ok_or_else(|| missing("cluster"))?;
    let user = entry("users", "user").ok_or_else(|| missing("user"))?;
    if let (Some(server), Some(cluster)) = (server, cluster.as_object_mut()) {
        set_server(cluster, server);
    }
    let mut content = json!({"cluster": context, "user": context});
    if let Some(namespace) = own.get("namespace") {
        content["namespace"] = namespace.clone();
    }
    let current = current_context(document).map(str::to_owned);
    let previous = match current {
        Some(current) if current == context => previous_context(document, context).map(str::to_owned),
        Some(other) => Some(other),
        None => elsewhere.filter(|name| *name != context).map(str::to_owned),
    };
    if let Some(previous) = previous {
        content["extensions"] = json!([{"name": EXTENSION, "extension": {"previousContext": previous}}]);
    }
    put(document, "clusters", context, "cluster", &cluster);
    put(document, "users", context, "user", &user);
    put(document, "contexts", context, "context", &content);
    document["current-context"] = json!(context);
    Ok(())
}

fn put(document: &mut Value, list: &str, name: &str, key: &str, content: &Value) {
    let entry = json!({"name": name, key: content});
    match document.get_mut(list).and_then(Value::as_array_mut) {
        Some(entries) => match entries.iter_mut().find(|found| found["name"] == name) {
            Some(found) => *found = entry,
            None => entries.push(entry),
        },
        // Missing, or null, which kubectl takes for an empty list.
        None => document[list] = json!([entry]),
    }
}

/// The context to go back to from this one, if it still exists. `document` has the contexts of all files.
pub(crate) fn known_previous(document: &Value, context: &str) -> Option<String> {
    let previous = previous_context(document, context).filter(|previous| *previous != context)?;
    find(document, "contexts", previous).map(|_| previous.to_owned())
}

/// Removes the context of a tenant with its cluster and user. If it is the current one, `previous` becomes current. Returns whether
/// there was anything of the context.
pub(crate) fn remove_context(document: &mut Value, context: &str, previous: Option<&str>) -> bool {
    let is_current = current_context(document) == Some(context);
    let existed = is_current || LISTS.iter().any(|list| find(document, list, context).is_some());
    for list in LISTS {
        if let Some(entries) = document.get_mut(list).and_then(Value::as_array_mut) {
            entries.retain(|entry| entry["name"] != context);
        }
    }
    // Contexts that were made from this one go back to what was before it.
    let contexts = document.get_mut("contexts").and_then(Value::as_array_mut);
    for entry in contexts.into_iter().flatten() {
        let extensions = entry.pointer_mut("/context/extensions").and_then(Value::as_array_mut);
        for extension in extensions.into_iter().flatten() {
            if extension["name"] == EXTENSION && extension["extension"]["previousContext"] == context {
                extension["extension"]["previousContext"] = json!(previous);
            }
        }
    }
    if is_current {
        document["current-context"] = json!(previous.unwrap_or_default());
    }
    existed
}

/// `<namespace>/<name>` of the tenant that a context is of; none if `berth connect` did not make it.
pub(crate) fn tenant_of(context: &str) -> Option<&str> {
    context.strip_prefix(PREFIX)
}

/// The contexts that `berth connect` made.
pub(crate) fn tenant_contexts(document: &Value) -> Vec<&str> {
    let contexts = document["contexts"].as_array().into_iter().flatten();
    let names = contexts.filter_map(|entry| entry["name"].as_str());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

/// The tenant's kubeconfig with another address of its API server.
pub(crate) fn with_server(tenant: &Value, server: &Server) -> Value {
    let mut changed = tenant.clone();
    let clusters = changed.get_mut("clusters").and_then(Value::as_array_mut);
    for entry in clusters.into_iter().flatten() {
        let Some(cluster) = entry.get_mut("cluster").and_then(Value::as_object_mut) else {
            continue;
        };
        set_server(cluster, server);
    }
    changed
}

fn set_server(cluster: &mut Map<String, Value>, server: &Server) {
    cluster.insert("server".into(), json!(server.url));
    cluster.insert("tls-server-name".into(), json!(server.tls_name));
}

#[cfg(test)]
mod tests;
