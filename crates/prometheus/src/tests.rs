use super::*;
use http::Response;
use serde::Deserialize;
use std::{borrow::Cow, convert::Infallible, sync::Arc};

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Labels<'a> {
    #[serde(borrow)]
    pod: Cow<'a, str>,
}

/// A client of a server that gives this answer to everything.
fn answering(status: u16, body: &str) -> Prometheus {
    let body: Arc<str> = body.into();
    let service = tower::service_fn(move |_: Request<Body>| {
        let body = Arc::clone(&body);
        async move {
            let mut response = Response::new(Body::from(body.as_bytes().to_vec()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    Prometheus {
        client: Client::new(service, "default"),
        timeout: Duration::from_secs(5),
    }
}

/// Names of pods and values of the rows of an answer.
async fn ask(status: u16, body: &str) -> Result<Vec<(String, f64)>, QueryError> {
    let answer = answering(status, body).query("up", 0).await?;
    let rows = answer.rows::<Labels<'_>>()?.into_iter();
    Ok(rows.map(|row| (row.labels.pod.into_owned(), row.value)).collect())
}

#[tokio::test]
async fn rows_have_labels_and_a_value() {
    let rows = ask(
        200,
        r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"pod":"a","other":"x"},"value":[1435781451.781,"0.25"]},
            {"metric":{},"value":[1435781451,"+Inf"]},
            {"metric":{"pod":"with \"quotes\""},"value":[1,"1"]}]}}"#,
    )
    .await
    .unwrap();
    let read: Vec<(&str, f64)> = rows.iter().map(|(pod, value)| (pod.as_str(), *value)).collect();
    assert_eq!(read, [("a", 0.25), ("", f64::INFINITY), ("with \"quotes\"", 1.0)]);
}

#[test]
fn texts_of_rows_are_not_copied() {
    let body =
        r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"pod":"a"},"value":[1,"1"]}]}}"#;
    let answer = Answer::new(StatusCode::OK, body.as_bytes().to_vec()).unwrap();
    let rows = answer.rows::<Labels<'_>>().unwrap();
    assert!(matches!(rows[0].labels.pod, Cow::Borrowed("a")));
}

#[tokio::test]
async fn a_value_that_is_not_a_number_is_read() {
    let body = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"NaN"]}]}}"#;
    assert!(ask(200, body).await.unwrap()[0].1.is_nan());
}

#[tokio::test]
async fn a_rejected_query_says_why() {
    let error = ask(
        400,
        r#"{"status":"error","errorType":"bad_data","error":"parse error at char 3"}"#,
    )
    .await
    .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("400") && text.contains("parse error at char 3"), "{text}");
    let text = ask(503, "upstream connect error").await.unwrap_err().to_string();
    assert!(
        text.contains("503") && text.contains("upstream connect error"),
        "{text}"
    );
}

#[tokio::test]
async fn an_answer_with_warnings_is_not_complete() {
    let body = r#"{"status":"success","warnings":["store-2 did not answer"],
        "data":{"resultType":"vector","result":[]}}"#;
    let error = ask(200, body).await.unwrap_err();
    assert_eq!(error.category(), "Incomplete");
    let body = r#"{"status":"success","isPartial":true,"data":{"resultType":"vector","result":[]}}"#;
    let error = ask(200, body).await.unwrap_err();
    assert_eq!(error.category(), "Incomplete");
}

#[tokio::test]
async fn a_clock_that_is_behind_that_of_the_server_is_an_error() {
    let body = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[5000,"5000"]}]}}"#;
    let server = answering(200, body);
    for now in [4940, 5000, 9000] {
        assert!(server.check_clock(now).await.is_ok(), "{now}");
    }
    let error = server.check_clock(4939).await.unwrap_err();
    assert_eq!(error.category(), "ClockBehind");
    assert!(error.to_string().contains("61 s behind"), "{error}");
    let empty = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
    let error = answering(200, empty).check_clock(0).await.unwrap_err();
    assert_eq!(error.category(), "Invalid");
}

#[tokio::test]
async fn answers_of_something_else_are_errors() {
    for body in [
        "<html>Sign in</html>",
        "{}",
        r#"{"status":"success"}"#,
        r#"{"status":"error","error":"x"}"#,
        r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#,
        r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"much"]}]}}"#,
    ] {
        assert_eq!(ask(200, body).await.unwrap_err().category(), "Invalid", "{body}");
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_an_error() {
    // Port 9 of the loopback address: nothing listens there.
    let prometheus = Prometheus::new(PrometheusConfig::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
    let error = prometheus.query("up", 0).await.unwrap_err();
    assert_eq!(error.category(), "Connection", "{error}");
}

#[tokio::test]
async fn a_url_without_scheme_or_host_is_refused() {
    for url in ["prometheus:9090", "/path", "ftp://example.com"] {
        let config = PrometheusConfig::new(url.parse().unwrap());
        assert!(matches!(Prometheus::new(config), Err(ClientError::Url(_))), "{url}");
    }
}

#[tokio::test]
async fn a_token_is_not_sent_in_plain_text_to_another_machine() {
    let config = |url: &str| PrometheusConfig {
        token_file: Some("/nonexistent/token".into()),
        ..PrometheusConfig::new(url.parse().unwrap())
    };
    let is_refused = |config| matches!(Prometheus::new(config), Err(ClientError::InsecureToken(_)));
    for url in [
        "http://prometheus.monitoring.svc:9090",
        "http://10.0.0.7:9090",
        "http://localhost.example.com",
        "http://127.0.0.1.example.com",
        "http://[2001:db8::1]:9090",
    ] {
        assert!(is_refused(config(url)), "{url}");
        let allowed = PrometheusConfig {
            allow_insecure_token: true,
            ..config(url)
        };
        assert!(!is_refused(allowed), "{url}");
        assert!(
            !is_refused(PrometheusConfig::new(url.parse().unwrap())),
            "without a token: {url}"
        );
    }
    for url in [
        "https://prometheus.monitoring.svc",
        "http://127.0.0.1:9090",
        "http://[::1]:9090",
        "http://localhost",
    ] {
        assert!(!is_refused(config(url)), "{url}");
    }
    let message = ClientError::InsecureToken("http://10.0.0.7".parse().unwrap()).to_string();
    assert!(message.contains("--prometheus-allow-insecure-token"), "{message}");
}
