//! The JSON of `torch.export`'s schema (torch/_export/serde/schema.py), as far as a graph needs it.
//!
//! Unions are objects of one key. Fields that later schemas add are ignored; an argument of an unknown kind is kept by its key,
//! so that the node that has it can be named.

use indexmap::IndexMap;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};
use std::{collections::HashMap, fmt};

/// The program: `models/*.json`.
#[derive(Debug, Deserialize)]
pub struct ExportedProgram {
    pub graph_module: GraphModule,
    #[serde(default)]
    pub range_constraints: IndexMap<String, RangeConstraint>,
    #[serde(default)]
    pub guards_code: Vec<String>,
    pub schema_version: SchemaVersion,
    #[serde(default)]
    pub torch_version: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct SchemaVersion {
    pub major: i64,
    pub minor: i64,
}

#[derive(Debug, Deserialize)]
pub struct RangeConstraint {
    pub min_val: Option<i64>,
    #[serde(default, deserialize_with = "lenient_int")]
    pub max_val: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub struct GraphModule {
    pub graph: GraphJson,
    pub signature: Signature,
}

#[derive(Debug, Deserialize)]
pub struct GraphJson {
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    pub nodes: Vec<NodeJson>,
    #[serde(default)]
    pub tensor_values: HashMap<String, TensorMeta>,
}

#[derive(Debug, Deserialize)]
pub struct NodeJson {
    pub target: String,
    pub inputs: Vec<NamedArgument>,
    pub outputs: Vec<Argument>,
    /// Absent before schema 8.9: the first output's name is the node's.
    #[serde(default)]
    pub name: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct NamedArgument {
    #[serde(default)]
    pub name: String,
    pub arg: Argument,
}

/// Dtype, sizes and place of a tensor value.
#[derive(Clone, Debug, Deserialize)]
pub struct TensorMeta {
    pub dtype: i64,
    pub sizes: Vec<SymInt>,
    #[serde(default)]
    pub strides: Vec<SymInt>,
    #[serde(default)]
    pub storage_offset: Option<SymInt>,
    #[serde(default)]
    pub layout: Option<i64>,
    #[serde(default)]
    pub device: Option<Device>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Device {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub index: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymInt {
    AsInt(i64),
    AsExpr(SymExpr),
}

#[derive(Clone, Debug, Deserialize)]
pub struct SymExpr {
    pub expr_str: String,
}

/// A reference to a value by name.
#[derive(Clone, Debug, Deserialize)]
pub struct Name {
    pub name: String,
}

/// An integer argument: a number, or the name of a symbolic one.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymIntArgument {
    AsName(String),
    AsInt(i64),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionalTensor {
    AsTensor(Name),
    AsNone(IgnoredAny),
}

/// A sub-graph handed to a higher-order op.
#[derive(Debug, Deserialize)]
pub struct GraphArgument {
    pub graph: GraphJson,
}

/// An argument or result of a node.
#[derive(Debug)]
pub enum Argument {
    None,
    Tensor(String),
    Tensors(Vec<String>),
    OptionalTensors(Vec<Option<String>>),
    Int(i64),
    Ints(Vec<i64>),
    Float(f64),
    Floats(Vec<f64>),
    Bool(bool),
    Bools(Vec<bool>),
    Str(String),
    SymInt(SymIntArgument),
    SymInts(Vec<SymIntArgument>),
    SymBool(Option<String>),
    DType(i64),
    Graph(Box<GraphArgument>),
    /// An argument of a kind that no op here reads (devices, layouts, …), by its key.
    Other(String),
}

impl Argument {
    /// What to call its kind in messages.
    pub fn kind(&self) -> &str {
        match self {
            Argument::None => "None",
            Argument::Tensor(_) => "a tensor",
            Argument::Tensors(_) | Argument::OptionalTensors(_) => "a list of tensors",
            Argument::Int(_) => "an integer",
            Argument::Ints(_) | Argument::SymInts(_) => "a list of integers",
            Argument::Float(_) => "a float",
            Argument::Floats(_) => "a list of floats",
            Argument::Bool(_) => "a bool",
            Argument::Bools(_) => "a list of bools",
            Argument::Str(_) => "a text",
            Argument::SymInt(_) => "a dynamic integer",
            Argument::SymBool(_) => "a dynamic bool",
            Argument::DType(_) => "a dtype",
            Argument::Graph(_) => "a graph",
            Argument::Other(key) => key,
        }
    }
}

impl<'de> Deserialize<'de> for Argument {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(ArgumentVisitor)
    }
}

struct ArgumentVisitor;

impl<'de> Visitor<'de> for ArgumentVisitor {
    type Value = Argument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an argument: an object of one key")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Argument, A::Error> {
        let key: std::borrow::Cow<'de, str> = map.next_key()?.ok_or_else(|| A::Error::custom("an argument without a key"))?;
        let names = |list: Vec<Name>| list.into_iter().map(|n| n.name).collect();
        let argument = match &*key {
            "as_none" => map.next_value::<IgnoredAny>().map(|_| Argument::None)?,
            "as_tensor" => Argument::Tensor(map.next_value::<Name>()?.name),
            "as_tensors" => Argument::Tensors(names(map.next_value()?)),
            "as_optional_tensors" => {
                let list: Vec<OptionalTensor> = map.next_value()?;
                let name = |tensor| match tensor {
                    OptionalTensor::AsTensor(name) => Some(name.name),
                    OptionalTensor::AsNone(_) => None,
                };
                Argument::OptionalTensors(list.into_iter().map(name).collect())
            }
            "as_int" => Argument::Int(map.next_value()?),
            "as_ints" => Argument::Ints(map.next_value()?),
            "as_float" => Argument::Float(map.next_value::<Float>()?.0),
            "as_floats" => Argument::Floats(map.next_value::<Vec<Float>>()?.into_iter().map(|float| float.0).collect()),
            "as_bool" => Argument::Bool(map.next_value()?),
            "as_bools" => Argument::Bools(map.next_value()?),
            "as_string" => Argument::Str(map.next_value()?),
            "as_sym_int" => Argument::SymInt(map.next_value()?),
            "as_sym_ints" => Argument::SymInts(map.next_value()?),
            "as_sym_bool" => Argument::SymBool(map.next_value::<SymBool>()?.as_name),
            "as_scalar_type" => Argument::DType(map.next_value()?),
            "as_graph" => Argument::Graph(map.next_value()?),
            other => {
                let other = other.to_owned();
                map.next_value::<IgnoredAny>()?;
                Argument::Other(other)
            }
        };
        match map.next_key::<IgnoredAny>()? {
            None => Ok(argument),
            Some(_) => Err(A::Error::custom(format!("an argument with a second key beside `{key}`"))),
        }
    }
}

#[derive(Deserialize)]
struct SymBool {
    as_name: Option<String>,
}

/// JSON has no infinities or NaN: they travel as strings.
struct Float(f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(f64),
            Text(String),
        }
        match Raw::deserialize(d)? {
            Raw::Number(value) => Ok(Float(value)),
            Raw::Text(text) => match &*text {
                "Infinity" => Ok(Float(f64::INFINITY)),
                "-Infinity" => Ok(Float(f64::NEG_INFINITY)),
                "NaN" => Ok(Float(f64::NAN)),
                other => Err(D::Error::custom(format!("`{other}` is no number"))),
            },
        }
    }
}

/// Bounds that no 64-bit integer holds (`int_oo` is written as one) count as absent.
fn lenient_int<'de, D: Deserializer<'de>>(d: D) -> Result<Option<i64>, D::Error> {
    let number: Option<serde_json::Number> = Option::deserialize(d)?;
    Ok(number.and_then(|n| n.as_i64()))
}

#[derive(Debug, Deserialize)]
pub struct Signature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}

/// What an input of the graph is; keys are those of the schema's `InputSpec`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec {
    UserInput { arg: Argument },
    Parameter { arg: Name, parameter_name: String },
    Buffer { arg: Name, buffer_name: String },
    TensorConstant { arg: Name, tensor_constant_name: String },
    ConstantInput {},
    CustomObj { arg: Name },
    Token { arg: Name },
}

/// What an output of the graph is; keys are those of the schema's `OutputSpec`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputSpec {
    UserOutput { arg: Argument },
    LossOutput { arg: Name },
    BufferMutation { arg: Name, buffer_name: String },
    ParameterMutation { arg: Name, parameter_name: String },
    UserInputMutation { arg: Name, user_input_name: String },
    GradientToParameter { arg: Name, parameter_name: String },
    GradientToUserInput { arg: Name, user_input_name: String },
    Token {},
}

/// `data/weights/*_weights_config.json` and `data/constants/*_constants_config.json`.
#[derive(Debug, Default, Deserialize)]
pub struct PayloadConfig {
    pub config: IndexMap<String, Payload>,
}

#[derive(Debug, Deserialize)]
pub struct Payload {
    pub path_name: String,
    #[serde(default)]
    pub use_pickle: bool,
    #[serde(default)]
    pub tensor_meta: Option<TensorMeta>,
}
