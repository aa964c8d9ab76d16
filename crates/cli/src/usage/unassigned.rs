//! `berth usage --unassigned`: the nodes and GPUs of pools that no tenant had.

use std::process::ExitCode;

use berth_api::UsageRecord;
use jiff::Timestamp;

use super::arguments::{UsageArguments, UsageFormat};
use super::period::Period;
use super::read::{Cards, Records};
use super::view::{Request, Usage, months_without};
use super::{prices_of, print_usage, status_of};
use crate::error::Error;

/// Prints what no tenant had on some days.
///
/// # Errors
/// The user may not read UsageRecords, or the arguments do not fit together.
pub(super) fn print_unassigned(
    arguments: &UsageArguments,
    (records, cards): (Records, Cards),
    (period, now): (Period, Timestamp),
) -> Result<ExitCode, Error> {
    let group_by = arguments.unassigned_group_by()?;
    let records = records.map_err(|refusal| {
        Error::Failed(format!(
            "what no tenant had is known from the records of all tenants and pools: {refusal}"
        ))
    })?;
    let (prices, without_costs) = prices_of(cards, arguments)?;
    let of_pools: Vec<UsageRecord> = { records.iter() }
        .filter(|record| record.spec.tenant.is_pool())
        .cloned()
        .collect();
    let request = Request {
        period,
        group_by,
        months_without_records: months_without(&of_pools, period, now),
        without_costs,
    };
    let usage = Usage::of_unassigned(&records, &prices, request);
    print_usage(&usage, arguments.output, || Err(no_charges()))?;
    Ok(status_of(&usage))
}

/// Finds, before the host is asked, what does not fit to `--unassigned`. `namespace` is that of `--namespace`.
///
/// # Errors
/// Something does not.
pub(super) fn check(namespace: Option<&str>, arguments: &UsageArguments) -> Result<(), Error> {
    if namespace.is_some() {
        return Err(Error::Usage(
            "--unassigned is about pools, which have no namespace: leave out --namespace".into(),
        ));
    }
    if arguments.output == UsageFormat::Focus {
        return Err(no_charges());
    }
    arguments.unassigned_group_by().map(drop)
}

fn no_charges() -> Error {
    Error::Usage("FOCUS is about charges, and nobody is charged for what no tenant had: use -o csv".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser as _;

    fn arguments(line: &str) -> UsageArguments {
        match Arguments::try_parse_from(line.split(' ')).unwrap().command {
            Command::Usage(arguments) => arguments,
            _ => panic!("not usage"),
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        assert!(Arguments::try_parse_from("berth usage vision --unassigned".split(' ')).is_err());
        assert!(check(None, &arguments("berth usage --unassigned")).is_ok());
        let error = check(None, &arguments("berth usage --unassigned --by tenant")).unwrap_err();
        assert!(error.to_string().contains("no tenant: leave out"), "{error}");
        let error = check(None, &arguments("berth usage --unassigned -o focus")).unwrap_err();
        assert!(error.to_string().starts_with("FOCUS is about charges"), "{error}");
        let error = check(Some("team"), &arguments("berth usage --unassigned")).unwrap_err();
        assert!(error.to_string().ends_with("leave out --namespace"), "{error}");
    }
}
