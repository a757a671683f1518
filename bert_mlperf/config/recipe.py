"""Recipe: the hyperparameters that the MLPerf rules let a submitter choose, for one global batch size."""

from pydantic import BaseModel, ConfigDict, Field


class Recipe(BaseModel):
    """Global batch, LAMB and learning-rate schedule. A step is one update of the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    global_batch_size: int = Field(ge=1, description="Samples per step, over all ranks.")
    base_learning_rate: float = Field(gt=0, le=1e37, description="Rate at the start of the decay, per step.")
    training_steps: int = Field(ge=1, description="Step at which the linear decay reaches 0.")
    warmup_steps: int = Field(default=0, ge=0, description="Length of the linear warm-up, in steps.")
    start_warmup_step: int = Field(
        default=0, le=0, description="Step at which the warm-up starts; below 0 it starts above a rate of 0."
    )
    beta_1: float = Field(default=0.9, ge=0, lt=1, description="Decay of the first moment, per step.")
    beta_2: float = Field(default=0.999, ge=0, lt=1, description="Decay of the second moment, per step.")
    epsilon: float = Field(default=1e-6, gt=0, description="Added to the root of the second moment.")
    weight_decay: float = Field(
        default=0.01, ge=0, description="Share of a weight added to its update; biases and LayerNorm are exempt."
    )
