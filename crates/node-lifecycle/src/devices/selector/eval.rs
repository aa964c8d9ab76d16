//! Evaluates an expression for a device.

use super::parse::Expression;
use crate::devices::slice_spec::{self, Properties, Property};
use berth_api::quantity;
use std::cmp::Ordering;

/// A device and its driver.
#[derive(Clone, Copy)]
pub(super) struct Device<'a> {
    pub(super) driver: &'a str,
    pub(super) device: &'a slice_spec::Device,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(i64),
    Text(String),
    /// In thousandths.
    Quantity(i128),
    Version(Vec<u64>),
    List(Vec<Self>),
    Device,
    /// `attributes` or `capacity` of the device.
    Map(Properties),
    /// The attributes or capacities of one domain.
    Domain(Properties, String),
    /// An optional value that is absent.
    Nothing,
}

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvalError {
    /// The device does not have it, or it is of another type.
    Absent,
    /// The expression is not understood.
    Unknown,
}

pub(super) fn evaluate(expression: &Expression, device: &Device<'_>) -> Result<Value, EvalError> {
    Ok(match expression {
        Expression::Bool(value) => Value::Bool(*value),
        Expression::Int(value) => Value::Int(*value),
        Expression::Text(text) => Value::Text(text.clone()),
        Expression::Name(name) if name == "device" => Value::Device,
        Expression::Name(_) => return Err(EvalError::Unknown),
        Expression::List(items) => Value::List(
            items
                .iter()
                .map(|item| evaluate(item, device))
                .collect::<Result<_, _>>()?,
        ),
        Expression::Not(inner) => Value::Bool(!truth(inner, device)?),
        Expression::All(all) => Value::Bool(!decided(all, false, device)?),
        Expression::Any(any) => Value::Bool(decided(any, true, device)?),
        Expression::Compare(left, sign, right) => Value::Bool(compare(
            &evaluate(left, device)?,
            sign,
            &evaluate(right, device)?,
            device,
        )?),
        Expression::If(parts) => {
            let [condition, holds, otherwise] = &**parts;
            evaluate(if truth(condition, device)? { holds } else { otherwise }, device)?
        }
        Expression::Get { of, key, optional } => {
            let found = get(&evaluate(of, device)?, &evaluate(key, device)?, device);
            match found {
                Err(EvalError::Absent) if *optional => Value::Nothing,
                found => found?,
            }
        }
        Expression::Call { name, arguments } if name == "has" => {
            let [of] = arguments.as_slice() else {
                return Err(EvalError::Unknown);
            };
            match evaluate(of, device) {
                Ok(_) => Value::Bool(true),
                Err(EvalError::Absent) => Value::Bool(false),
                Err(unknown) => return Err(unknown),
            }
        }
        Expression::Call { name, arguments } => {
            let arguments: Vec<Value> = arguments
                .iter()
                .map(|argument| evaluate(argument, device))
                .collect::<Result<_, _>>()?;
            call(name, &arguments)?
        }
    })
}

fn truth(expression: &Expression, device: &Device<'_>) -> Result<bool, EvalError> {
    match evaluate(expression, device)? {
        Value::Bool(value) => Ok(value),
        _ => Err(EvalError::Absent),
    }
}

/// Whether any expression is `wanted`. If one is, errors of the others do not count, as in CEL.
fn decided(all: &[Expression], wanted: bool, device: &Device<'_>) -> Result<bool, EvalError> {
    let mut error = None;
    for one in all {
        match truth(one, device) {
            Ok(value) if value == wanted => return Ok(true),
            Ok(_) => {}
            // The unknown expression could be the wanted one.
            Err(found) => {
                error = if error == Some(EvalError::Unknown) {
                    error
                } else {
                    Some(found)
                }
            }
        }
    }
    error.map_or(Ok(false), Err)
}

fn compare(left: &Value, sign: &str, right: &Value, device: &Device<'_>) -> Result<bool, EvalError> {
    if sign == "in" {
        return match right {
            Value::List(items) => Ok(items.contains(left)),
            Value::Map(_) | Value::Domain(..) => match get(right, left, device) {
                // `get` accepts any domain: check whether the device has it.
                Ok(Value::Domain(map, domain)) => Ok(properties(map, device).any(|(of, _, _)| of == domain)),
                Ok(_) => Ok(true),
                Err(EvalError::Absent) => Ok(false),
                Err(unknown) => Err(unknown),
            },
            _ => Err(EvalError::Unknown),
        };
    }
    match sign {
        "==" => return Ok(left == right),
        "!=" => return Ok(left != right),
        _ => {}
    }
    let order = order(left, right)?;
    Ok(match sign {
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    })
}

fn order(left: &Value, right: &Value) -> Result<Ordering, EvalError> {
    match (left, right) {
        (Value::Int(left), Value::Int(right)) => Ok(left.cmp(right)),
        (Value::Quantity(left), Value::Quantity(right)) => Ok(left.cmp(right)),
        (Value::Version(left), Value::Version(right)) => Ok(left.cmp(right)),
        (Value::Text(left), Value::Text(right)) => Ok(left.cmp(right)),
        _ => Err(EvalError::Absent),
    }
}

/// Domain, name and value of attributes or capacity. Names without a domain are in the driver's domain.
fn properties<'a>(of: Properties, device: &Device<'a>) -> impl Iterator<Item = (&'a str, &'a str, &'a Property)> {
    let Device { driver, device } = *device;
    device.properties(of).map(move |(key, value)| {
        let (domain, name) = key.split_once('/').unwrap_or((driver, key));
        (domain, name, value)
    })
}

fn get(of: &Value, key: &Value, device: &Device<'_>) -> Result<Value, EvalError> {
    let Value::Text(key) = key else {
        return Err(EvalError::Unknown);
    };
    match of {
        Value::Device => match key.as_str() {
            "driver" => Ok(Value::Text(device.driver.to_owned())),
            "attributes" => Ok(Value::Map(Properties::Attributes)),
            "capacity" => Ok(Value::Map(Properties::Capacity)),
            "allowMultipleAllocations" => Ok(Value::Bool(
                device.device.allow_multiple_allocations.unwrap_or_default(),
            )),
            _ => Err(EvalError::Unknown),
        },
        Value::Map(map) => Ok(Value::Domain(*map, key.clone())),
        Value::Domain(map, domain) => {
            let mut all = properties(*map, device);
            let (_, _, value) = all
                .find(|(of, name, _)| of == domain && name == key)
                .ok_or(EvalError::Absent)?;
            read(value)
        }
        Value::Nothing => Err(EvalError::Absent),
        _ => Err(EvalError::Unknown),
    }
}

/// Reads an attribute or capacity of a device.
fn read(property: &Property) -> Result<Value, EvalError> {
    let Property {
        string,
        int,
        bool,
        version: semver,
        value,
    } = property;
    let read = match (string, int, bool, semver, value) {
        (Some(text), ..) => Some(Value::Text(text.clone())),
        (_, Some(number), ..) => Some(Value::Int(*number)),
        (_, _, Some(holds), ..) => Some(Value::Bool(*holds)),
        (_, _, _, Some(text), _) => version(text),
        (.., Some(text)) => quantity::parse(text).map(Value::Quantity),
        _ => None,
    };
    read.ok_or(EvalError::Unknown)
}

/// A version whose parts are numbers. The order of pre-releases is not supported.
fn version(text: &str) -> Option<Value> {
    let (core, _build) = text.split_once('+').unwrap_or((text, ""));
    let parts: Result<Vec<u64>, _> = core.split('.').map(str::parse).collect();
    parts.ok().filter(|parts| parts.len() == 3).map(Value::Version)
}

fn call(name: &str, arguments: &[Value]) -> Result<Value, EvalError> {
    let value = match (name, arguments) {
        ("quantity", [Value::Text(text)]) => quantity::parse(text).map(Value::Quantity).ok_or(EvalError::Absent)?,
        ("semver", [Value::Text(text)]) => version(text).ok_or(EvalError::Unknown)?,
        ("compareTo", [left, right]) => Value::Int(order(left, right)? as i64),
        ("isGreaterThan", [left, right]) => Value::Bool(order(left, right)?.is_gt()),
        ("isLessThan", [left, right]) => Value::Bool(order(left, right)?.is_lt()),
        ("startsWith", [Value::Text(text), Value::Text(part)]) => Value::Bool(text.starts_with(part.as_str())),
        ("endsWith", [Value::Text(text), Value::Text(part)]) => Value::Bool(text.ends_with(part.as_str())),
        ("contains", [Value::Text(text), Value::Text(part)]) => Value::Bool(text.contains(part.as_str())),
        ("lowerAscii", [Value::Text(text)]) => Value::Text(text.to_ascii_lowercase()),
        ("upperAscii", [Value::Text(text)]) => Value::Text(text.to_ascii_uppercase()),
        ("major" | "minor" | "patch", [Value::Version(parts)]) => {
            let at = ["major", "minor", "patch"].iter().position(|part| *part == name);
            let part = at
                .and_then(|at| parts.get(at))
                .and_then(|part| i64::try_from(*part).ok());
            Value::Int(part.ok_or(EvalError::Unknown)?)
        }
        ("orValue", [Value::Nothing, other]) => other.clone(),
        ("orValue", [value, _]) => value.clone(),
        ("hasValue", [value]) => Value::Bool(*value != Value::Nothing),
        _ => return Err(EvalError::Unknown),
    };
    Ok(value)
}
