/* config/table_inactive.h: keys of ds_config.json that belong to parts of
 * DeepSpeed without a counterpart here: other kinds of parallelism, tools
 * around training, and what older versions had. The rows are table.h's. A group
 * takes any keys, so that only those that would change training have a row.
 * SPDX-License-Identifier: MIT */

/* ---- other kinds of parallelism ---- */
IGNORED("use_data_before_expert_parallelism", "false", "order of the ranks of expert groups")
UNSUPPORTED("expert_parallel", "null", "experts are layers of the model: ds_nn_moe")
UNSUPPORTED("sequence_parallel_size", "1", "there is no sequence parallelism")
IGNORED("data_parallel_size", "null", "it is the number of ranks")
IGNORED_GROUP("tensor_parallel", NULL_NO, "layers divided among ranks")
UNSUPPORTED("tensor_parallel.dtype", "null", "fp16 or bf16 decide")
UNSUPPORTED_ABOVE("tensor_parallel.autotp_size", "0", 1, "there is no tensor parallelism")
IGNORED_GROUP("tensor_parallel.tensor_parallel", NULL_NO, "sizes")
UNSUPPORTED("tensor_parallel.tensor_parallel.tp_size", "1", "there is no tensor parallelism")
ALIAS("tensor_parallel.tp", "tensor_parallel.tensor_parallel")
IGNORED_GROUP("pipeline", NULL_NO, "there is no pipeline parallelism")
IGNORED_GROUP("hybrid_engine", NULL_NO, "generation between training steps")
UNSUPPORTED("hybrid_engine.enabled", "false", "ds_generate needs no engine of its own")

/* ---- other tools ---- */
IGNORED("disable_python_gc", "false", "there is no Python")
IGNORED("vocabulary_size", "null", "DeepSpeed warns if it is no multiple of 8")
UNSUPPORTED("weight_quantization", "null", "weights are not quantized")
IGNORED_GROUP("compile", NULL_NO, "torch.compile")
IGNORED_GROUP("autotuning", NULL_NO, "a search for a configuration")
UNSUPPORTED("autotuning.enabled", "false",
            "there is no search; bench/run and deepspeed --estimate_memory help to choose")

/* ---- data efficiency ---- */
IGNORED_GROUP("data_efficiency", NULL_NO, "a curriculum of samples, dropping of tokens")
UNSUPPORTED("data_efficiency.enabled", "false", "samples come in the order of the sampler")
IGNORED_GROUP("data_efficiency.data_sampling", NULL_NO, "order and size of batches")
IGNORED_GROUP("data_efficiency.data_sampling.curriculum_learning", NULL_NO, "order of samples")
UNSUPPORTED("data_efficiency.data_sampling.curriculum_learning.enabled", "false",
            "samples come in the order of the sampler")
IGNORED_GROUP("data_efficiency.data_sampling.dynamic_batching", NULL_NO, "batches by length")
UNSUPPORTED("data_efficiency.data_sampling.dynamic_batching.enabled", "false",
            "all batches have the configured size")

/* ---- of older versions ---- */
REMOVED("sparse_gradients", "gradients of embeddings travel dense")
REMOVED("graph_harvesting", "CUDA graphs")
REMOVED("quantize_training", "training of quantized weights")
REMOVED("curriculum_learning",
        "there is no curriculum; a data set of the program can put its samples in any order")
REMOVED("progressive_layer_drop", "layers left out at random")
REMOVED("eigenvalue", "of layers, for quantized training")
REMOVED("nebula", "a checkpoint service")
REMOVED("elasticity", "set the batch keys themselves")
REMOVED("sparse_attention", "layouts of attention for CUDA kernels")
REMOVED("compression_training", "quantized and pruned layers")
