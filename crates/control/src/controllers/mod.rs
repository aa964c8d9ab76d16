//! The controllers: one folder for each kind of object that control reconciles.

pub mod tenant;
pub mod tenant_class;
