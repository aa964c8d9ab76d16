//! The answer of Prometheus to an instant query.

use crate::{QueryError, shorten};
use http::StatusCode;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};

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
#[serde(rename_all = "camelCase", bound = "L: DeserializeOwned")]
struct Answer<L> {
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
#[serde(rename_all = "camelCase", bound = "L: DeserializeOwned")]
struct Data<L> {
    result_type: String,
    result: Vec<Row<L>>,
}

/// What an answer of a server that is not Prometheus, or a rejection, has.
#[derive(Deserialize)]
struct Rejection {
    error: String,
}

/// A sample: time and value. The value is a text, because JSON has neither infinity nor NaN.
fn read_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let (_, text) = <(f64, String)>::deserialize(deserializer)?;
    match text.as_str() {
        "+Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        number => number
            .parse()
            .map_err(|_| D::Error::custom(format!("{number:?} is not a value of a sample"))),
    }
}

/// Reads an answer.
pub(crate) fn parse<L: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<Vec<Row<L>>, QueryError> {
    if !status.is_success() {
        let message = serde_json::from_slice::<Rejection>(body)
            .map_or_else(|_| String::from_utf8_lossy(body).into_owned(), |said| said.error);
        return Err(QueryError::Rejected {
            status,
            message: shorten(message.trim()),
        });
    }
    let invalid = |why: &str| QueryError::Invalid(shorten(why));
    let answer: Answer<L> = serde_json::from_slice(body).map_err(|error| invalid(&error.to_string()))?;
    if answer.status != "success" {
        return Err(invalid(&format!("status {:?}: {}", answer.status, answer.error)));
    }
    if let Some(warning) = answer.warnings.first() {
        return Err(QueryError::Incomplete(shorten(warning)));
    }
    if answer.is_partial {
        return Err(QueryError::Incomplete(
            "the server says that a part is missing".to_owned(),
        ));
    }
    let data = answer.data.ok_or_else(|| invalid("it has no data"))?;
    if data.result_type != "vector" {
        return Err(invalid(&format!("a {} instead of a vector", data.result_type)));
    }
    Ok(data.result)
}
