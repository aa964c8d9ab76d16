//! When certificates become valid, expire, and should be renewed.

use std::time::Duration;

use jiff::Timestamp;
use time::OffsetDateTime;
use x509_parser::pem::parse_x509_pem;

use crate::Error;

/// How far in the past the validity of a certificate begins, so that a peer whose clock is a little behind accepts it.
pub(crate) const BACKDATE: Duration = Duration::from_mins(5);

/// The first and last moment at which a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    pub(crate) not_before: OffsetDateTime,
    pub(crate) not_after: OffsetDateTime,
}

impl Validity {
    /// From five minutes ago until `lifetime` from now, but never beyond `limit`, which must not be over.
    pub(crate) fn starting_now(lifetime: Duration, limit: Option<OffsetDateTime>) -> Result<Self, Error> {
        let now = OffsetDateTime::now_utc();
        if let Some(limit) = limit.filter(|limit| *limit <= now) {
            return Err(Error::Expired(limit.to_string()));
        }
        let lifetime_signed = time::Duration::try_from(lifetime).map_err(|_| Error::Validity(lifetime))?;
        let end = now.checked_add(lifetime_signed).ok_or(Error::Validity(lifetime))?;
        Ok(Self {
            not_before: now - BACKDATE,
            not_after: limit.map_or(end, |limit| end.min(limit)),
        })
    }
}

/// Reads both ends of a certificate's validity.
fn read(cert_pem: &str) -> Result<(Timestamp, Timestamp), Error> {
    let (_, pem) = parse_x509_pem(cert_pem.as_bytes()).map_err(|error| Error::NotACertificate(error.to_string()))?;
    let certificate = pem
        .parse_x509()
        .map_err(|error| Error::NotACertificate(error.to_string()))?;
    let validity = certificate.validity();
    let timestamp =
        |seconds| Timestamp::from_second(seconds).map_err(|error| Error::NotACertificate(error.to_string()));
    Ok((
        timestamp(validity.not_before.timestamp())?,
        timestamp(validity.not_after.timestamp())?,
    ))
}

/// The moment from which the (first) certificate in `cert_pem` is valid.
///
/// # Errors
/// [`Error::NotACertificate`] when the text is not a PEM certificate.
pub fn not_before(cert_pem: &str) -> Result<Timestamp, Error> {
    Ok(read(cert_pem)?.0)
}

/// The moment at which the (first) certificate in `cert_pem` expires.
///
/// # Errors
/// [`Error::NotACertificate`] when the text is not a PEM certificate.
pub fn not_after(cert_pem: &str) -> Result<Timestamp, Error> {
    Ok(read(cert_pem)?.1)
}

/// The moment at which the certificate should be replaced: when two thirds of its validity are over.
///
/// # Errors
/// [`Error::NotACertificate`] when the text is not a PEM certificate.
pub fn renew_at(cert_pem: &str) -> Result<Timestamp, Error> {
    let (start, end) = read(cert_pem)?;
    let life = end.as_second() - start.as_second();
    Timestamp::from_second(start.as_second() + life * 2 / 3).map_err(|error| Error::NotACertificate(error.to_string()))
}
