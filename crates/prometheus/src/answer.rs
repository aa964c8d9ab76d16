//! The answer of Prometheus to an instant query.

use crate::{QueryError, shorten};
use http::StatusCode;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny},
};
use std::borrow::Cow;

/// What Prometheus answered, complete and not read yet: rows may borrow their texts from it.
#[derive(Debug)]
pub struct Answer(Vec<u8>);

/// One series.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Row<L> {
    /// Its labels.
    #[serde(rename = "metric")]
    pub labels: L,
    /// Its value.
    #[serde(deserialize_with = "read_value")]
    pub value: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "L: Deserialize<'de>"))]
struct Content<L> {
    status: String,
    data: Option<Data<L>>,
    #[serde(default)]
    error: String,
    #[serde(default)]
    warnings: Vec<String>,
    /// VictoriaMetrics says so without a warning.
    #[serde(default)]
    is_partial: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "L: Deserialize<'de>"))]
struct Data<L> {
    result_type: String,
    result: Vec<Row<L>>,
}

/// What an answer of a server that is not Prometheus, or a rejection, has.
#[derive(Deserialize)]
struct Rejection {
    error: String,
}

/// A text that is copied only if it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A sample: time and value. The value is a text, because JSON has neither infinity nor NaN.
fn read_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let (_, Text(text)) = <(IgnoredAny, Text<'de>)>::deserialize(deserializer)?;
    match &*text {
        "+Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        number => number
            .parse()
            .map_err(|_| D::Error::custom(format!("{number:?} is not a value of a sample"))),
    }
}

impl Answer {
    /// The body of a response.
    pub(crate) fn new(status: StatusCode, body: Vec<u8>) -> Result<Self, QueryError> {
        if status.is_success() {
            return Ok(Self(body));
        }
        let message = serde_json::from_slice::<Rejection>(&body)
            .map_or_else(|_| String::from_utf8_lossy(&body).into_owned(), |said| said.error);
        Err(QueryError::Rejected {
            status,
            message: shorten(message.trim()),
        })
    }

    /// One row for each series. `L` has the labels that are needed.
    ///
    /// # Errors
    /// The answer is not that of Prometheus, or not complete: with warnings, a store behind it may not have answered.
    pub fn rows<'a, L: Deserialize<'a>>(&'a self) -> Result<Vec<Row<L>>, QueryError> {
        let invalid = |why: &str| QueryError::Invalid(shorten(why));
        let content: Content<L> = serde_json::from_slice(&self.0).map_err(|error| invalid(&error.to_string()))?;
        if content.status != "success" {
            return Err(invalid(&format!("status {:?}: {}", content.status, content.error)));
        }
        if let Some(warning) = content.warnings.first() {
            return Err(QueryError::Incomplete(shorten(warning)));
        }
        if content.is_partial {
            return Err(QueryError::Incomplete(
                "the server says that a part is missing".to_owned(),
            ));
        }
        let data = content.data.ok_or_else(|| invalid("it has no data"))?;
        if data.result_type != "vector" {
            return Err(invalid(&format!("a {} instead of a vector", data.result_type)));
        }
        Ok(data.result)
    }
}
