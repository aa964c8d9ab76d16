//! `berth usage`: what tenants used, and what it costs. The amounts are in UsageRecords, which control writes, and the prices in RateCards; here
//! they are put together. Who may not read UsageRecords gets what the status of its tenants says ([`team`]). With `--unassigned` it is what no tenant had
//! ([`unassigned`]).

mod arguments;
mod export;
mod order;
mod period;
mod read;
mod team;
#[cfg(test)]
mod tests;
mod text;
mod unassigned;
mod view;

use std::process::ExitCode;

use berth_metering::{PriceBook, day_of};

use crate::error::Error;
use crate::host::HostArguments;
use crate::output::{OutputFormat, print, print_line, print_note};
use crate::tenant::TenantName;
pub(crate) use arguments::UsageArguments;
use arguments::UsageFormat;
use period::Period;
use read::Cards;
use view::{Request, Selection, Usage, months_without};

pub(crate) async fn run(host: &HostArguments, arguments: &UsageArguments) -> Result<ExitCode, Error> {
    let given = arguments.namespaces.given(host).map(ToOwned::to_owned);
    if arguments.unassigned {
        unassigned::check(given.as_deref(), arguments)?;
    }
    let host = host.connect().await?;
    let now = host.now().await;
    let period = Period::new(arguments.month, arguments.from, arguments.to, day_of(now))?;
    let named = arguments.tenants.iter().map(|text| TenantName::parse_for(text, &host));
    let selection = Selection {
        namespace: given,
        tenants: named.collect::<Result<_, _>>()?,
    };
    let selector = period.selector();
    let (records, cards) = tokio::join!(
        read::list_records(&host.client, &selector),
        read::list_cards(&host.client)
    );
    if arguments.unassigned {
        return unassigned::print_unassigned(arguments, (records?, cards?), (period, now));
    }
    let records = match records? {
        Ok(records) => read::of_tenants(records),
        Err(refusal) => {
            let asked = team::Asked::new(selection, arguments, (period, now), &refusal)?;
            let tenants = asked.read_tenants(&host.client).await?;
            print_usage(&asked.usage(&tenants), arguments.output, || Err(asked.no_costs()))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let (prices, without_costs) = prices_of(cards?, arguments)?;
    let request = Request {
        period,
        group_by: arguments.group_by(),
        months_without_records: months_without(&records, period, now),
        without_costs,
    };
    let records = selection.select(records, period)?;
    let query = request.query();
    let usage = Usage::new(&records, &prices, request, now);
    print_usage(&usage, arguments.output, || {
        export::write_focus(&records, &prices, &query, &arguments.provider)
    })?;
    Ok(status_of(&usage))
}

/// The status of a report that was printed.
fn status_of(usage: &Usage) -> ExitCode {
    if usage.has_unclear_costs() {
        // A script must not take the report for a whole one.
        print_note(format_args!(
            "costs are missing until RateCards are corrected; the report says which"
        ));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Prints a report in the requested format. `write_focus` makes that of FOCUS.
fn print_usage(
    usage: &Usage,
    format: UsageFormat,
    write_focus: impl FnOnce() -> Result<String, Error>,
) -> Result<(), Error> {
    match format {
        UsageFormat::Table => print(usage, text::describe, OutputFormat::Table),
        UsageFormat::Wide => print(usage, text::describe_wide, OutputFormat::Table),
        UsageFormat::Json => print(usage, text::describe, OutputFormat::Json),
        UsageFormat::Yaml => print(usage, text::describe, OutputFormat::Yaml),
        UsageFormat::Csv => print_csv(usage, &export::write_csv(usage)?),
        UsageFormat::Focus => print_csv(usage, &write_focus()?),
    }
}

/// The prices that a report applies, and why there are none if the RateCards cannot be read.
fn prices_of(cards: Cards, arguments: &UsageArguments) -> Result<(PriceBook, Option<String>), Error> {
    let currency = arguments
        .currency
        .as_ref()
        .map(|currency| currency.to_ascii_uppercase());
    let is_focus = arguments.output == UsageFormat::Focus;
    let advice = "`kubectl auth can-i list ratecards.berth.dev` says whether you may";
    let prices = match cards {
        Ok(cards) => read::read_prices(&cards, currency.as_deref())?,
        Err(error) if is_focus || currency.is_some() => {
            return Err(Error::Failed(format!(
                "cannot list the RateCards, which have the prices: {error}; {advice}"
            )));
        }
        Err(error) => {
            let without_costs = format!("Costs are not shown: {error}; {advice}.");
            return Ok((PriceBook::default(), Some(without_costs)));
        }
    };
    let currencies: Vec<&str> = prices.currencies().collect();
    if is_focus && currencies.is_empty() {
        return Err(Error::Failed(
            "FOCUS is about costs, and there is no RateCard: create one with your prices (docs/guides/metering.md), or use -o csv".into(),
        ));
    }
    if is_focus && currencies.len() > 1 {
        return Err(Error::Usage(format!(
            "RateCards have prices in {}, and FOCUS has a row for each of them: choose one with --currency",
            currencies.join(", ")
        )));
    }
    Ok((prices, None))
}

/// Prints a table for programs, and to stderr what is not in it.
fn print_csv(usage: &Usage, table: &str) -> Result<(), Error> {
    for note in &usage.notes {
        print_note(format_args!("{note}"));
    }
    print_line(format_args!("{}", table.trim_end()))
}
