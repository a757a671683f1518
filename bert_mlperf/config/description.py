"""The 33 fields of an MLPerf system description, all strings, as the official checkers want them."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from bert_mlperf.config import rules


class SystemDescription(BaseModel):
    """What a submitter says about the hardware and software. An empty string means "not stated"."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    submitter: str = Field(min_length=1, description="Organisation that submits.")
    division: str = Field(description="MLPerf division: closed (the exact benchmark) or open (anything else).")
    status: str = Field(description="Availability of the system, in the words of the rules.")
    system_name: str = Field(min_length=1, description="Name of the system for people.")
    number_of_nodes: str = Field(pattern=r"^[1-9][0-9]{0,5}$", description="Number of hosts that train.")
    host_processors_per_node: str = Field(description="Number of processor sockets of a host.")
    host_processor_model_name: str = Field(description="Name of the processor.")
    host_processor_core_count: str = Field(description="Cores of one processor.")
    host_processor_vcpu_count: str = Field(description="Virtual processors of a host, in a cloud.")
    host_processor_frequency: str = Field(description="Clock of the processor, with its unit.")
    host_processor_caches: str = Field(description="Caches of the processor, with their units.")
    host_processor_interconnect: str = Field(description="Link between the processors of a host.")
    host_memory_capacity: str = Field(description="Memory of a host, with its unit.")
    host_storage_type: str = Field(description="Kind of storage of a host.")
    host_storage_capacity: str = Field(description="Storage of a host, with its unit.")
    host_networking: str = Field(description="Network between the hosts.")
    host_networking_topology: str = Field(description="Topology of that network.")
    host_memory_configuration: str = Field(description="Memory modules of a host.")
    accelerators_per_node: str = Field(description="Accelerators of a host; 0 where the processors train.")
    accelerator_model_name: str = Field(description="Name of the accelerator.")
    accelerator_host_interconnect: str = Field(description="Link between accelerator and host.")
    accelerator_frequency: str = Field(description="Clock of the accelerator, with its unit.")
    accelerator_on_chip_memories: str = Field(
        alias="accelerator_on-chip_memories", description="Memories on the chip of the accelerator, with their units."
    )
    accelerator_memory_configuration: str = Field(description="Kind of the accelerator's memory.")
    accelerator_memory_capacity: str = Field(description="Memory of one accelerator, with its unit.")
    accelerator_interconnect: str = Field(description="Link between the accelerators of a host.")
    accelerator_interconnect_topology: str = Field(description="Topology of that link.")
    cooling: str = Field(description="Cooling of the system.")
    hw_notes: str = Field(description="Remarks on the hardware.")
    framework: str = Field(description="Training framework and its version.")
    other_software_stack: str | dict[str, str] = Field(description="Other software, as text or name -> version.")
    operating_system: str = Field(description="Operating system and its version.")
    sw_notes: str = Field(description="Remarks on the software.")

    @field_validator("division")
    @classmethod
    def _known_division(cls, value: str) -> str:
        return _one_of(value, rules.DIVISIONS)

    @field_validator("status")
    @classmethod
    def _known_status(cls, value: str) -> str:
        return _one_of(value, tuple(rules.STATUS_IN_LOG))


def _one_of(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {', '.join(repr(item) for item in allowed)}")
    return value


MLPERF_FIELDS = tuple(field.alias or name for name, field in SystemDescription.model_fields.items())
