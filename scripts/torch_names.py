#!/usr/bin/env python3
"""Write or check the lists of torch.nn.functional and torch.nn in docs/from-pytorch.md.

usage: torch_names.py [--check] ROOT

A name is here if a public header has the function that it maps to: ds_NAME (ds_NAME_with) for a function,
ds_nn_NAME in lower case for a class, or what FUNCTIONS and CLASSES say. --check fails if the document says otherwise.
The names are those of PyTorch 2.15, without forms in place, `*_with_indices`, deprecated and internal ones.
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import sys
import textwrap

BEGIN, END = '<!-- torch names -->\n', '<!-- end of torch names -->\n'

FUNCTIONAL = '''
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear binary_cross_entropy
binary_cross_entropy_with_logits celu channel_shuffle conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d cosine_embedding_loss cosine_similarity cross_entropy ctc_loss dropout dropout1d dropout2d dropout3d elu
embedding embedding_bag feature_alpha_dropout fold fractional_max_pool2d fractional_max_pool3d gaussian_nll_loss gelu glu
grid_sample group_norm grouped_mm gumbel_softmax hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss
instance_norm interpolate kl_div l1_loss layer_norm leaky_relu linear linear_cross_entropy local_response_norm log_softmax
logsigmoid lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss max_pool1d max_pool2d max_pool3d max_unpool1d max_unpool2d
max_unpool3d mish mse_loss multi_head_attention_forward multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
nll_loss normalize one_hot pad pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu relu6
rms_norm rrelu scaled_addmm scaled_dot_product_attention scaled_grouped_mm scaled_mm selu sigmoid silu smooth_l1_loss
soft_margin_loss softmax softmin softplus softshrink softsign tanh tanhshrink threshold triplet_margin_loss
triplet_margin_with_distance_loss unfold'''.split()

NN = '''
AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d AdaptiveMaxPool2d
AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d
Bilinear Buffer CELU CTCLoss ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
ConstantPad3d Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss CosineSimilarity
CrossEntropyLoss DataParallel Dropout Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten
Fold FractionalMaxPool2d FractionalMaxPool3d GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid Hardswish
Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d KLDivLoss L1Loss LPPool1d
LPPool2d LPPool3d LSTM LSTMCell LayerNorm LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d
LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d
LazyLinear LeakyReLU Linear LinearCrossEntropyLoss LinearCrossEntropyOptions LocalResponseNorm LogSigmoid LogSoftmax MSELoss
MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish Module ModuleDict ModuleList
MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss MultiheadAttention NLLLoss PReLU PairwiseDistance Parameter
ParameterDict ParameterList PixelShuffle PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNCell RReLU ReLU ReLU6 ReflectionPad1d
ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU Sequential SiLU Sigmoid SmoothL1Loss
SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink Threshold Transformer
TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer TripletMarginLoss
TripletMarginWithDistanceLoss Unflatten Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d
ZeroPad3d'''.split()

# Other names here, if a header has them.
FUNCTIONS = {'hardtanh': 'ds_clamp', 'relu6': 'ds_clamp', 'scaled_dot_product_attention': 'ds_attention',
             'multi_head_attention_forward': 'ds_call_attention', 'dropout1d': 'ds_dropout2d', 'dropout3d': 'ds_dropout2d',
             **{f'max_unpool{n}d': 'ds_max_unpool' for n in (1, 2, 3)}}
PADS = ('Circular', 'Constant', 'Reflection', 'Replication', 'Zero')
CLASSES = {'Module': 'ds_module_new', 'Parameter': 'ds_module_param', 'Buffer': 'ds_module_buffer',
           'ModuleDict': 'ds_nn_module_list', 'DataParallel': 'ds_data_parallel_new',
           'BCELoss': 'ds_binary_cross_entropy', 'BCEWithLogitsLoss': 'ds_binary_cross_entropy_with_logits',
           'KLDivLoss': 'ds_kl_div', 'LogSigmoid': 'ds_nn_logsigmoid', 'Softmax2d': 'ds_softmax',
           'UpsamplingBilinear2d': 'ds_nn_upsample', 'UpsamplingNearest2d': 'ds_nn_upsample',
           'MultiLabelMarginLoss': 'ds_multilabel_margin_loss',
           'MultiLabelSoftMarginLoss': 'ds_multilabel_soft_margin_loss',
           **{f'MaxUnpool{n}d': 'ds_max_unpool' for n in (1, 2, 3)},
           **{f'{kind}Pad{n}d': 'ds_nn_pad' for kind in PADS for n in (1, 2, 3)}}


def snake(name):
    """BatchNorm2d -> batch_norm2d, SiLU -> silu, LeakyReLU -> leaky_relu, LSTMCell -> lstm_cell."""
    if re.fullmatch('[A-Za-z]{1,3}LU6?', name):
        return name.lower()
    return re.sub('(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])', '_', name.replace('ReLU', 'Relu')).lower()


def public(root):
    text = ''.join(p.read_text() for p in sorted((root / 'include/deepspeed').glob('*.h')))
    return {name.removesuffix('_with') for name in re.findall(r'\b(ds_\w+)\(', text)}


def paragraph(words):
    return textwrap.fill(', '.join(words) + '.', 80, break_long_words=False, break_on_hyphens=False) + '\n\n'


def section(title, how, names, others, default, functions):
    """The names that are here as default(name)[0], those that are here otherwise, and those that are not."""
    here = {n: next((f for f in [others.get(n), *default(n)] if f in functions), None) for n in names}
    usual = [n for n in names if here[n] == default(n)[0]]
    other = [f'`{n}` (`{here[n]}`)' for n in names if here[n] and n not in usual]
    text = paragraph([f'{title}, {how}: ' + ', '.join(f'`{n}`' for n in usual)])
    text += paragraph([f'{title}, under another name: ' + ', '.join(other)])
    return text + paragraph([f'{title}, not here: ' + ', '.join(f'`{n}`' for n in names if not here[n])])


def lists(root):
    functions = public(root)
    return '\n' + section('torch.nn.functional', 'here as `conv2d` is, which is `ds_conv2d`', FUNCTIONAL, FUNCTIONS,
                          lambda n: [f'ds_{n}'], functions) + section(
        'torch.nn', 'here as `BatchNorm1d` is, which is `ds_nn_batch_norm1d`', NN, CLASSES,
        lambda n: [f'ds_nn_{snake(n)}', f'ds_{snake(n)}', f'ds_{snake(n).removesuffix("_loss")}'], functions)


def main(check, root):
    path = pathlib.Path(root) / 'docs/from-pytorch.md'
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        return f'{path}: expected the lines {BEGIN.strip()} and {END.strip()}, once each'
    head, rest = text.split(BEGIN)
    new = head + BEGIN + lists(pathlib.Path(root)) + END + rest.split(END)[1]
    if not check:
        path.write_text(new)
    elif new != text:
        return f'{path}: its lists of torch.nn are not those of the headers: run scripts/torch_names.py .'
    return 0


if __name__ == '__main__':
    sys.exit(main('--check' in sys.argv, sys.argv[-1]))
