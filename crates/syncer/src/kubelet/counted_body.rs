//! The body of a log that counts as open until it has been sent, or the API server has gone.

use super::shares::Share;
use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// The body, and what it counts.
pub(super) struct CountedBody {
    body: Body,
    _share: Share,
}

impl CountedBody {
    /// A body that counts.
    pub(super) fn new(body: Body, share: Share) -> Self {
        Self { body, _share: share }
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
