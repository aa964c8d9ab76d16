//! Structured logs on standard error: one line for each event, of which each field is cut and has no control characters.

use crate::log_lines::{JsonLines, TextFields};
use tracing::Subscriber;
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// What is logged by default: libraries log much, and the client's own log repeats every rejected request, which its caller reports better.
const DEFAULT: &str = "info,kube=warn,kube_client=off,kube_runtime=warn,tower=warn,hyper=warn";

/// Format of the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One line of text per event, for people.
    #[default]
    Text,
    /// One JSON object per event, for log collectors.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("unknown log format {other:?}: use text or json")),
        }
    }
}

/// Starts logging to standard error. `RUST_LOG` selects what is logged (default: `info`, and less of libraries that log much). A second call has
/// no effect.
pub fn init(format: LogFormat) {
    init_with(format, DEFAULT);
}

/// The same with another default of `RUST_LOG`.
pub fn init_with(format: LogFormat, default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    if let Err(error) = tracing::subscriber::set_global_default(subscriber(format, filter, std::io::stderr)) {
        tracing::debug!(%error, "logging was already started");
    }
}

/// Writes what passes the filter.
pub(crate) fn subscriber<W>(format: LogFormat, filter: EnvFilter, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => Box::new(builder.fmt_fields(TextFields).with_ansi(false).finish()),
        LogFormat::Json => Box::new(builder.event_format(JsonLines).finish()),
    }
}
