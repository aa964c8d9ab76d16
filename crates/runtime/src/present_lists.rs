//! Lists that are read as streams are of what the datastore has now, as other lists are.
//!
//! kube-runtime asks for such a list from version 0: of what the API server has in its cache, however old that is. With several API servers, what was
//! seen before could be missing from it, and would count as deleted: a syncer that starts would delete what is on the host for it, with its data.
//! Without a version the API server waits until its cache is as new as the datastore, as it does for client-go.

use crate::answers::parameters;
use http::{Request, Uri};
use kube::client::Body;

/// The same request, without the version if it is for a list as a stream.
pub fn ask_for_present(mut request: Request<Body>) -> Request<Body> {
    if let Some(uri) = without_version(request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

/// The address without the version; none if it is not for a list as a stream.
fn without_version(uri: &Uri) -> Option<Uri> {
    if !parameters(uri).any(|one| one == "sendInitialEvents=true") {
        return None;
    }
    let kept: Vec<&str> = parameters(uri).filter(|one| *one != "resourceVersion=0").collect();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{}", uri.path(), kept.join("&")).parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client;
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use kube::{Api, Config, api::WatchParams};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    /// The first line of a request, which is answered with 404.
    async fn first_line(listener: &TcpListener) -> String {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut text = String::new();
        while !text.contains("\r\n\r\n") {
            let mut part = [0; 4096];
            let length = connection.read(&mut part).await.unwrap();
            assert!(length > 0, "the request ends early");
            text.push_str(&String::from_utf8_lossy(&part[..length]));
        }
        let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        connection.write_all(answer).await.unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn control_and_syncers_ask_for_what_there_is_now() {
        crate::install_crypto();
        for build in [
            client::from_config,
            client::from_config_of_tenant,
            client::limited_and_reading_all,
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            let client = build(Config::new(address.parse().unwrap())).unwrap();
            let claims: Api<PersistentVolumeClaim> = Api::all(client);
            let stream = WatchParams::streaming_lists();
            let (line, _) = tokio::join!(first_line(&listener), claims.watch(&stream, "0"));
            assert!(
                line.contains("sendInitialEvents=true") && !line.contains("resourceVersion="),
                "{line}"
            );
        }
    }

    #[test]
    fn a_list_as_a_stream_has_no_version() {
        let uri = |params: &WatchParams, version: &str| {
            let request = kube::core::Request::new("/api/v1/pods").watch(params, version).unwrap();
            ask_for_present(request.map(Body::from)).uri().to_string()
        };
        let (stream, watch) = (WatchParams::streaming_lists(), WatchParams::default());
        let initial = uri(&stream, "0");
        assert!(
            initial.starts_with("/api/v1/pods?&watch=true&") && initial.contains("&sendInitialEvents=true"),
            "{initial}"
        );
        assert!(!initial.contains("resourceVersion="), "{initial}");
        for (params, version) in [(&watch, "0"), (&watch, "7"), (&stream, "7")] {
            let uri = uri(params, version);
            assert!(uri.ends_with(&format!("&resourceVersion={version}")), "{uri}");
        }
    }
}
